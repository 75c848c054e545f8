"""5,000 sentences that anybody may have, and a small encoder trained from them: ``make train-demo``."""
