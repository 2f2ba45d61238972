"""Examples for the OpenAPI document. A test validates each against its model."""

from __future__ import annotations

from shared.schemas.base import Contract, JsonObject, ProblemDocument
from shared.schemas.images import ImageView
from shared.schemas.jobs import EventView, JobDetail, JobSpec, JobView, ManifestImage
from shared.schemas.results import CounterfactualView

_BUS, _NIGHT, _NULL, _EDGES = "5c" * 32, "9f" * 32, "31" * 32, "77" * 32

JOB: JsonObject = {
    "id": "2b8e0c5be2a14a0c9b63a9d5b1f5ad3e",
    "state": "running",
    "failure": "",
    "task_description": "classify the vehicle",
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 4, "steps": 20}}],
    "models": ["street-classifier"],
    "classes": ["car", "bus", "boat"],
    "profile": "tiny",
    "seed": 0,
    "created_at": "2026-11-20T12:00:00Z",
    "finished_at": None,
}

_PREDICTION: JsonObject = {
    "predicted": "bus",
    "probability": 0.97,
    "ground_truth_probability": 0.97,
    "rank": 1,
    "top": [{"name": "bus", "probability": 0.97}, {"name": "car", "probability": 0.02}],
    "scores": {"bus": 1.0},
}
_NIGHT_PREDICTION: JsonObject = {
    "predicted": "car",
    "probability": 0.81,
    "ground_truth_probability": 0.11,
    "rank": 2,
    "top": [{"name": "car", "probability": 0.81}, {"name": "bus", "probability": 0.11}],
    "scores": {"bus": 0.0},
}

EXAMPLES: dict[type[Contract], JsonObject] = {
    JobView: JOB,
    JobDetail: {
        **JOB,
        "images": 48,
        "labelled": 48,
        "progress": {
            "images": {"waiting": 30, "in_progress": 8, "done": 9, "failed": 1, "cancelled": 0},
            "fraction": 0.208,
            "stage": "rendering",
            "stages": {"captioning": 1, "proposing": 2, "rendering": 5},
            "funnel": [
                {
                    "method": "dillema",
                    "proposed": 36,
                    "rendered": 34,
                    "accepted": 27,
                    "rejected": {"class words": 2, "structure": 4, "label": 3},
                    "null_arms": 36,
                }
            ],
        },
        "failures": [
            {"position": 3, "name": "bus/4.png", "reason": "the image is broken (truncated); export it again"}
        ],
        "report": None,
    },
    JobSpec: {"task_description": "classify the vehicle"},
    ManifestImage: {"digest": _BUS, "label": "bus", "name": "bus/1.png"},
    ImageView: {"digest": _BUS, "upload": _NIGHT, "width": 640, "height": 480, "bytes": 412_903},
    EventView: {
        "sequence": 17,
        "kind": "image",
        "payload": {"state": "done", "position": 4},
        "at": "2026-11-20T12:00:09Z",
    },
    CounterfactualView: {
        "id": "7d1f6a6f0c5f4f4f8a58d3c4a0b1e2d3",
        "kind": "classification",
        "source": {
            "id": "0f3c7a2b9d8e4c5f8a1b2c3d4e5f6a7b",
            "position": 0,
            "name": "bus/1.png",
            "ground_truth": "bus",
            "image": _BUS,
        },
        "method": "dillema",
        "ordinal": 0,
        "seed": 5_188_146_770_730_811_392,
        "changes": [
            {
                "factor": "weather",
                "from_phrase": "by day",
                "to_phrase": "after dark",
                "from_value": "day",
                "to_value": "night",
            }
        ],
        "caption": "A red bus in the city. It stands there by day.",
        "new_caption": "A red bus in the city. It stands there after dark.",
        "image": _NIGHT,
        "null_image": _NULL,
        "control_image": _EDGES,
        "verdict": {"accepted": True, "check": "", "reason": ""},
        "scores": {"structure": 0.91, "nearer to the new caption": 0.04, "label": 0.88},
        "predictions": [
            {
                "model": "street-classifier",
                "original": _PREDICTION,
                "null_arm": _PREDICTION,
                "counterfactual": _NIGHT_PREDICTION,
                "flipped": True,
            }
        ],
    },
    ProblemDocument: {
        "type": "urn:contrafact:problem:invalid-input",
        "title": "Invalid input",
        "status": 422,
        "detail": "unknown method 'dilemma'; choose from dillema",
        "instance": "/jobs",
    },
}
