"""What is shown of a model that is split over several ranks."""
