"""Two independent models of each domain that read the factors of an image: a factor counts if both agree."""
