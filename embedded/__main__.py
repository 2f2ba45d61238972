"""`python -m embedded`: run the whole system on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# `python -m` looks for modules in the working directory first, which may have a folder named like one of ours.
if __name__ == "__main__" and sys.path[0] == os.getcwd() != str(Path(__file__).resolve().parents[1]):
    del sys.path[0]

from embedded.directory import DirectoryInUse
from embedded.run import end_process, run_embedded
from embedded.stop_signals import StopSignal
from shared.profiles.profile import ProfileError


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m embedded", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("contrafact-data"), help="folder for all data")
    parser.add_argument("--port", type=int, default=8000, help="the gateway's port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--profile", default="tiny", help="a shipped profile, or the path of a TOML file")
    parser.add_argument("--deterministic", action="store_true", help="fixed batch shapes: results repeat bit for bit")
    parser.add_argument("--images-in-flight", type=int, help="source images processed at once (default: 8)")
    options = parser.parse_args()
    stop_signal = StopSignal()
    try:
        with run_embedded(
            options.directory,
            options.profile,
            deterministic=options.deterministic,
            port=options.port,
            images_in_flight=options.images_in_flight,
        ) as system:
            print(f"Contrafact answers at {system.base_url} and keeps everything in {system.directory}", flush=True)
            print("Ctrl-C stops it. Start it again on the same directory to continue.", flush=True)
            stop_signal.wait()
    except (DirectoryInUse, ProfileError) as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"cannot serve on port {options.port}: {error}; choose another with --port")
    end_process()


if __name__ == "__main__":
    main()
