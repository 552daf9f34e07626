"""What the OpenAPI document says of answers and errors. Nothing here runs when a request is answered."""
