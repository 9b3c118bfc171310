"""Deployments of the starter, plain, with a draft and of every kind, with what they ask of AWS."""

from __future__ import annotations

from backend.domain.deploy.container import image
from backend.domain.deploy.deployment import Capacity, Deployment, Idle, Scheduled
from backend.domain.evaluation.document import Speculation
from backend.domain.recipe.recipe import Serving

TOPIC = "arn:aws:sns:eu-central-1:123456789012:idle"
PLAIN = Deployment(
    id="chat",
    region="eu-central-1",
    role="arn:aws:iam::123456789012:role/serving",
    artifact="a-0123456789ab",
    name="awq int4",
    instance="ml.g6.12xlarge",
    image=str(image("lmi", "eu-central-1")),
    bucket="weights/team",
    quantized="compressed-tensors",
    serving=Serving(tensor_parallel=4, max_model_len=4096, max_num_seqs=32, prefix_caching=False),
    owner="ann@example.org",
)
DRAFT = PLAIN.model_copy(
    update={
        "speculation": Speculation(method="draft", tokens=4, draft_path="draft"),
        "capacity": Capacity(minimum=1, maximum=3, invocations=60),
    }
)
CASES = {
    "lmi": PLAIN,
    "lmi-draft-scaled": DRAFT,
    "lmi-ngram": PLAIN.model_copy(update={"speculation": Speculation(method="ngram", tokens=3)}),
    "lmi-timed": PLAIN.model_copy(
        update={
            "schedule": (
                Scheduled(at="cron(0 8 ? * MON-FRI *)", minimum=2, maximum=4),
                Scheduled(at="cron(0 20 ? * MON-FRI *)", minimum=1, maximum=1),
            ),
            "timezone": "Europe/Berlin",
            "idle": Idle(minutes=30, topic=TOPIC),
        }
    ),
    "lmi-private": PLAIN.model_copy(
        update={"kms_key": "alias/weights", "subnets": ("subnet-1", "subnet-2"), "security_groups": ("sg-1",)}
    ),
    "vllm-draft": DRAFT.model_copy(update={"container": "vllm", "image": str(image("vllm", "eu-central-1"))}),
}
DEPLOYMENT = PLAIN.model_copy(update={"region": "us-east-1", "instances": 2})
