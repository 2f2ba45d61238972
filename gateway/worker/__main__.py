"""`python -m gateway.worker`: a worker with the settings of the environment."""

from gateway.worker.worker import main

main()
