"""How the things of the small world look: objects, companions, places, weather and styles."""
