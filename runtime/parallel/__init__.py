"""One model over several ranks: how they join, what they send each other, and what happens when one is lost."""
