"""Tokenizers, corpora and masks."""
