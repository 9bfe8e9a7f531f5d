"""Networks that predict clean tokens."""
