"""§2–3 and App. A of the paper, on tensors: knows nothing of text, files or Transformers."""
