"""Measures of text that need no model: BLEU, MAUVE, entropies, matches, intervals."""
