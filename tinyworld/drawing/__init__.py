"""What drawings of both domains are made with: canvas and pen, light, styles, colours."""
