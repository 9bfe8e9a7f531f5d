"""Languages with exact answers: a Markov chain and its oracle, tales, numerals, and their judges."""
