"""Trained models in use: loading, text models, translators, decoders."""
