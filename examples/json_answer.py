"""An answer that must follow a JSON schema. python examples/json_answer.py [MODEL]."""

import json
import sys

import mlxr

MODEL = sys.argv[1] if len(sys.argv) > 1 else "storyteller"
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "wolf", "hen"]},
        "legs": {"type": "integer", "minimum": 2, "maximum": 4},
        "is_hungry": {"type": "boolean"},
    },
    "required": ["animal", "legs", "is_hungry"],
    "additionalProperties": False,
}

with mlxr.load(MODEL) as model:
    sampling = mlxr.Sampling(max_tokens=200, json_schema=SCHEMA)
    answer = model.generate("The animal that came to the door:", sampling=sampling)
    print(json.dumps(json.loads(answer.text)))
