"""What both drawn domains share in language and instructions that models are trained on."""
