"""What makes and measures Contrafact's shipped models and methods; no user needs it."""
