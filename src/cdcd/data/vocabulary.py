"""Tokens that every vocabulary begins with."""

PAD, EOS, UNKNOWN = 0, 1, 2
SPECIALS = ("<pad>", "<eos>", "<unk>")
