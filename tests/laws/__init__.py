"""Laws: what always holds, against an oracle that is not ours; Hypothesis searches for what breaks them."""
