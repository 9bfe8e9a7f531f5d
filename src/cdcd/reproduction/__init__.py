"""The paper's tables and figures as data: rows, trainings, samples, numbers, verdicts."""
