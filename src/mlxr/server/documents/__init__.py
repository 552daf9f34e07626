"""What answers and errors are: the OpenAPI document, whole answers and the writers of streams come from this."""
