"""Run the services' own engines at the large profiles' full size, on random weights: `make full-size`."""
