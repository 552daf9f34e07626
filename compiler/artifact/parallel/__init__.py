"""What an artifact says of a model that is split over ranks: each one's part, what they send, and where sums meet."""
