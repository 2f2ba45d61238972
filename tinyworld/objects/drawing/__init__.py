"""How the things of a scene are drawn: objects, companions, backgrounds, weather and styles."""
