"""docker-compose.yml and its GPU override are valid, closed and match the code; no container engine is needed."""

from __future__ import annotations

import ast
import importlib.resources
import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml
from pydantic_settings import BaseSettings

from evaluator_service.models_under_test.messages import default_memory_mib
from evaluator_service.repair_worker import TrainerSettings
from gateway.settings import Settings
from shared.media.images import ImageSettings
from shared.profiles.fetch_weights import hub_files
from shared.profiles.profile import load_profile
from shared.service.model_service import ModelService
from shared.service.settings import ServiceSettings
from tests.support.compose_files import BASE, GPU, ROOT, SECRETS, TGI, VLLM, composed
from tests.support.image_steps import stages

FILES = {
    "tiny": (BASE,),
    "paper": (BASE, GPU),
    "paper-tgi": (BASE, GPU, TGI),
    "modern-24gb": (BASE, GPU, VLLM),
}
VARIABLES = "".join(file.read_text(encoding="utf-8") for file in (BASE, GPU, TGI, VLLM))
MODEL_SERVICES = ("caption-service", "llm-service", "diffusion-service", "evaluator-service")
ONE_SHOT = ("weights", "migrate", "create-bucket", "first-key", "check")
OURS = {*MODEL_SERVICES, *ONE_SHOT, "gateway", "worker", "trainer"}
EVALUATOR_BYTES = 2**30  # of the service itself with the tiny models, measured at 320 to 530 MB
ENV_EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")

NO_SETTINGS = {
    "OMP_NUM_THREADS", "SSL_CERT_FILE", "LANGUAGE_SERVER_URL", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
}  # fmt: skip

Service = dict[str, Any]
GATEWAY_SETTINGS = {f"CONTRAFACT_{field.upper()}" for field in Settings.model_fields}
# Addresses of the other containers and keys to them, what the choice of files decides, and what health checks need.
FIXED = set(
    re.findall(
        r"\w+",
        """
        CONTRAFACT_DATABASE_URL CONTRAFACT_BROKER_URL CONTRAFACT_OBJECT_STORE CONTRAFACT_S3_ENDPOINT
        CONTRAFACT_S3_ACCESS_KEY CONTRAFACT_S3_SECRET_KEY CONTRAFACT_S3_SECURE CONTRAFACT_CAPTION_URL
        CONTRAFACT_LLM_URL CONTRAFACT_DIFFUSION_URL CONTRAFACT_EVALUATOR_URL CONTRAFACT_GATEWAY_URL
        CONTRAFACT_MODEL_ORIGIN CONTRAFACT_QUARANTINE CONTRAFACT_DEVICE CONTRAFACT_AUTHENTICATION
        CONTRAFACT_METRICS_PORT
        """,
    )
)


@pytest.fixture(params=FILES)
def services(request: pytest.FixtureRequest) -> dict[str, Service]:
    """All services, once as on a CPU, once as on a GPU."""
    services: dict[str, Service] = composed(*FILES[request.param])["services"]
    return services


def build_of(services: dict[str, Service], name: str) -> dict[str, Any]:
    """How the image of one of our containers is built; containers share images, and each image is built once."""
    (build,) = [
        item["build"] for item in services.values() if "build" in item and item["image"] == services[name]["image"]
    ]
    return dict(build)


def served(services: dict[str, Service], name: str) -> tuple[str, int]:
    """The package and the port of one of our containers."""
    build = build_of(services, name)
    arguments = build.get("args", {})
    return str(arguments.get("SERVICE", build["target"])), int(arguments.get("PORT", 8000))


def probe(service: Service) -> tuple[int, str]:
    """Port and path that a container's health check asks."""
    address = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w/-]*)", " ".join(service["healthcheck"]["test"]))
    assert address
    return int(address[1]), address[2]


@pytest.mark.parametrize("files", [(BASE,), (GPU,), (TGI,), (VLLM,), FILES["paper-tgi"], FILES["modern-24gb"]])
def test_files_follow_the_compose_specification(files: tuple[Path, ...]) -> None:
    vendored = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(vendored.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    if len(files) == 1:
        validator.validate(yaml.safe_load(files[0].read_text(encoding="utf-8")))
    validator.validate(composed(*files))
    wrong = composed(*files)
    next(iter(wrong["services"].values()))["helthcheck"] = {}
    assert not validator.is_valid(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_starts_without_its_secrets(secret: str) -> None:
    for missing in ({}, {secret: ""}):
        values = {name: value for name, value in SECRETS.items() if name != secret} | missing
        with pytest.raises(ValueError, match=f"{secret}.*set it in .env"):
            composed(BASE, variables=values)
    assert re.search(rf"^{secret}=(cf_)?$", ENV_EXAMPLE, re.MULTILINE)


@pytest.mark.slow
def test_a_gpu_needs_a_chosen_profile_and_says_which_licence_is_not_commercial() -> None:
    with pytest.raises(ValueError, match=r"CONTRAFACT_PROFILE.*non-commercial"):
        composed(BASE, GPU, variables=SECRETS | {"CONTRAFACT_PROFILE": ""})
    services = composed(BASE, GPU, variables=SECRETS | {"CONTRAFACT_PROFILE": "/profiles/ours.toml"})["services"]
    profiles = {services[name]["environment"]["CONTRAFACT_PROFILE"] for name in OURS - set(ONE_SHOT) | {"weights"}}
    assert profiles == {"/profiles/ours.toml"}
    captioner = load_profile("paper").caption.weights
    assert captioner
    assert "non-commercial" in captioner.licence, "otherwise the message is out of date"


def test_variables_are_those_of_the_example() -> None:
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", VARIABLES))
    named = set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", ENV_EXAMPLE, re.MULTILINE))
    assert used == named - {"COMPOSE_FILE", "COMPOSE_PROFILES"}


def test_the_one_variable_names_files_that_exist() -> None:
    choices = re.findall(r"^(?:# )?COMPOSE_FILE=(.+)$", ENV_EXAMPLE, re.MULTILINE)
    assert [tuple(ROOT / name for name in choice.split(":")) for choice in choices] == list(FILES.values())


def test_settings_are_those_of_the_code(services: dict[str, Service], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS - {"weights"}:
        kind = TrainerSettings if name == "trainer" else ServiceSettings if name in MODEL_SERVICES else Settings
        environment = {
            key: value for key, value in services[name]["environment"].items() if key != "CONTRAFACT_API_KEY"
        }
        setting_names = {f"CONTRAFACT_{field.upper()}" for field in kind.model_fields | ImageSettings.model_fields}
        assert environment.keys() - NO_SETTINGS <= setting_names, name
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, str(value))
            settings = kind()
        if isinstance(settings, Settings):
            assert settings.deployed
            assert settings.authentication


def test_every_setting_can_be_chosen_or_is_fixed() -> None:
    """Some settings reached no container."""
    kinds: dict[str, type[BaseSettings]] = dict.fromkeys(("gateway", "worker"), Settings)
    kinds |= {"trainer": TrainerSettings, **dict.fromkeys(MODEL_SERVICES, ServiceSettings)}
    names = {f"CONTRAFACT_{field.upper()}" for kind in kinds.values() for field in kind.model_fields}
    chosen = {name: f"value of {name}" for name in sorted(names - FIXED)}
    services = composed(BASE, variables=SECRETS | chosen)["services"]
    for container, kind in kinds.items():
        settings = {f"CONTRAFACT_{field.upper()}" for field in kind.model_fields} - FIXED
        if container != "evaluator-service":
            settings -= {name for name in names if name.startswith("CONTRAFACT_UPLOAD_")} - GATEWAY_SETTINGS
        environment = services[container]["environment"]
        assert {name for name in settings if environment.get(name) != chosen[name]} == set(), container
    settings_page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert {name for name in FIXED if f"`{name}`" not in settings_page} == set()


def test_defaults_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = dict(re.findall(r"\$\{(CONTRAFACT_\w+):-([^${}]+)\}", BASE.read_text(encoding="utf-8")))
    del defaults["CONTRAFACT_THREADS"]  # services share a machine
    for name, value in defaults.items():
        monkeypatch.setenv(name, value)
    kinds: list[type[BaseSettings]] = [Settings, ServiceSettings, TrainerSettings]
    for kind in kinds:
        settings = kind()
        for name, field in kind.model_fields.items():
            if f"CONTRAFACT_{name.upper()}" in defaults:
                assert getattr(settings, name) == field.default, name


@pytest.mark.slow
def test_each_service_may_compute_in_a_type_of_its_own() -> None:
    def types(**chosen: str) -> list[str]:
        services = composed(BASE, variables=SECRETS | chosen)["services"]
        return [services[name]["environment"]["CONTRAFACT_DTYPE"] for name in MODEL_SERVICES]

    assert types() == ["auto"] * 4
    assert types(CONTRAFACT_DTYPE="float32") == ["float32"] * 4
    environment = {f"{name}_DTYPE": dtype for name, dtype in (("CAPTION", "float32"), ("DIFFUSION", "bfloat16"))}
    assert types(**environment) == ["float32", "auto", "bfloat16", "auto"]
    assert types(CONTRAFACT_DTYPE="float16", LANGUAGE_DTYPE="float32", EVALUATOR_DTYPE="auto") == [
        "float16",
        "float32",
        "float16",
        "auto",
    ]


def test_addresses_are_those_of_the_other_containers(services: dict[str, Service]) -> None:
    environment = services["worker"]["environment"]
    for room in ("caption", "llm", "diffusion", "evaluator"):
        address = urlsplit(environment[f"CONTRAFACT_{room.upper()}_URL"])
        assert served(services, str(address.hostname)) == (f"{room}_service", address.port)
        assert probe(services[f"{room}-service"])[0] == address.port
    database, broker = (urlsplit(environment[f"CONTRAFACT_{name}_URL"]) for name in ("DATABASE", "BROKER"))
    postgres = services["postgres"]["environment"]
    assert (database.hostname, database.password) == ("postgres", postgres["POSTGRES_PASSWORD"])
    assert (database.username, database.path) == (postgres["POSTGRES_USER"], f"/{postgres['POSTGRES_DB']}")
    assert (broker.hostname, broker.password) == ("valkey", services["valkey"]["environment"]["REDISCLI_AUTH"])
    store = services["object-store"]["environment"]
    assert environment["CONTRAFACT_S3_ENDPOINT"] == f"object-store{store['VGW_PORT']}"
    assert environment["CONTRAFACT_S3_ACCESS_KEY"] == store["ROOT_ACCESS_KEY_ID"]
    assert environment["CONTRAFACT_S3_SECRET_KEY"] == store["ROOT_SECRET_ACCESS_KEY"]


def test_commands_and_build_arguments_exist(services: dict[str, Service]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name in OURS:
        command = services[name].get("command", [])
        if command[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(command[2]), command
        room, _ = served(services, name)
        assert room.removesuffix("_service") in extras
        if build_of(services, name)["target"] != "weights":
            tree = ast.parse((ROOT / room / "app.py").read_text(encoding="utf-8"))
            assert "create_app" in {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}


def test_everything_that_stays_up_is_probed_where_the_code_answers(services: dict[str, Service]) -> None:
    def load(make_batcher: object) -> Any:
        raise AssertionError("nothing is loaded here")

    app = ModelService("caption_service", "1", ServiceSettings(), load).app
    answered = {getattr(route, "path", "") for route in app.routes}
    for name in services.keys() - set(ONE_SHOT):
        assert services[name]["healthcheck"]["test"], name
        assert services[name]["restart"] == "unless-stopped", name
    for name in MODEL_SERVICES:
        assert probe(services[name]) == (served(services, name)[1], "/readyz")
    assert "/readyz" in answered
    for name in ("gateway", "worker", "trainer"):
        assert probe(services[name]) == (int(services[name]["environment"]["CONTRAFACT_METRICS_PORT"]), "/readyz")


def test_one_shots_end_before_others_begin(services: dict[str, Service]) -> None:
    for name in ONE_SHOT:
        assert services[name]["restart"] == "no"
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            conditions = (
                "service_completed_successfully" if other in ONE_SHOT else ("service_healthy", "service_started")
            )
            assert condition["condition"] in conditions, (name, other)
            assert "healthcheck" in services[other] or other in ONE_SHOT
    assert {"first-key", "create-bucket"} <= services["gateway"]["depends_on"].keys()
    assert "migrate" in services["first-key"]["depends_on"]
    assert all("weights" in services[name]["depends_on"] for name in MODEL_SERVICES)


def test_our_containers_may_do_little(services: dict[str, Service]) -> None:
    for name in OURS:
        service = services[name]
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    holders = [name for name, service in services.items() if "HF_TOKEN" in service.get("environment", {})]
    assert holders == ["weights"]
    writers = [name for name, service in services.items() if "weights:/weights" in service.get("volumes", [])]
    assert writers == ["weights"]


def test_only_the_gateway_is_published_and_models_and_state_have_no_way_out(services: dict[str, Service]) -> None:
    for name, service in services.items():
        for port in service.get("ports", []):
            assert name == "gateway" or port.startswith("127.0.0.1:"), (name, port)
    networks = composed(BASE)["networks"]
    closed = {name for name, network in networks.items() if network.get("internal")}
    for name in {*MODEL_SERVICES, "postgres", "valkey", "object-store", "worker", "trainer"}:
        assert set(services[name]["networks"]) <= closed, name


def test_the_trainer_has_the_workers_broker_and_store_and_no_database(services: dict[str, Service]) -> None:
    trainer, worker = services["trainer"], services["worker"]["environment"]
    for name in ("BROKER_URL", "OBJECT_STORE", "S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY"):
        assert trainer["environment"][f"CONTRAFACT_{name}"] == worker[f"CONTRAFACT_{name}"]
    assert "CONTRAFACT_DATABASE_URL" not in trainer["environment"]
    assert trainer["image"] == services["evaluator-service"]["image"]
    assert {"valkey", "create-bucket"} <= trainer["depends_on"].keys()


def test_images_are_pinned(services: dict[str, Service]) -> None:
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert tag.startswith("local") if name in OURS else re.search(r"\d", tag), service["image"]


def test_the_override_really_switches_to_the_papers_weights_on_gpus() -> None:
    tiny, paper = (composed(*FILES[name])["services"] for name in ("tiny", "paper"))
    for name in OURS - {"migrate", "create-bucket", "first-key"}:
        assert tiny[name]["environment"]["CONTRAFACT_PROFILE"] == "tiny", name
        assert paper[name]["environment"]["CONTRAFACT_PROFILE"] == "paper", name
    for name in ("caption-service", "diffusion-service", "evaluator-service", "trainer", "language-server"):
        devices = paper[name]["deploy"]["resources"]["reservations"]["devices"]
        assert devices == [{"driver": "nvidia", "device_ids": ["0"], "capabilities": ["gpu"]}]
    assert not any("deploy" in service for service in tiny.values())
    for name in ("caption-service", "diffusion-service", "evaluator-service"):
        assert tiny[name]["environment"]["CONTRAFACT_DEVICE"] == "cpu"
        assert paper[name]["environment"]["CONTRAFACT_DEVICE"] == "cuda"
        assert tiny[name]["image"] != paper[name]["image"]
    override = yaml.safe_load(GPU.read_text(encoding="utf-8"))["services"]
    assert {name for name in override if "build" in override[name]} == {
        name for name in paper if paper[name]["image"].endswith("-cuda") and "build" in paper[name]
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "variable", "default"),
    [
        (FILES["tiny"], "TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu"),
        (FILES["paper"], "TORCH_CUDA_INDEX", ""),
    ],
)
def test_the_index_of_torch_can_be_chosen(files: tuple[Path, ...], variable: str, default: str) -> None:
    def indexes(**chosen: str) -> set[str]:
        services = composed(*files, variables=SECRETS | chosen)["services"]
        names = [name for name in MODEL_SERVICES if files == FILES["tiny"] or services[name]["image"].endswith("-cuda")]
        return {services[name]["build"]["args"]["PIP_EXTRA_INDEX_URL"] for name in names}

    assert indexes() == {default}
    assert indexes(**{variable: "https://index.example/cu126"}) == {"https://index.example/cu126"}


def test_every_image_of_ours_is_built_by_one_service(services: dict[str, Service]) -> None:
    built = [service["image"] for service in services.values() if "build" in service]
    assert len(built) == len(set(built))
    assert {services[name]["image"] for name in OURS} == set(built)


def test_logs_are_bounded(services: dict[str, Service]) -> None:
    for name, service in services.items():
        logging = service["logging"]
        assert logging["driver"] == "json-file", name
        assert logging["options"].keys() == {"max-size", "max-file"}, name
    assert services["object-store"]["environment"]["VGW_QUIET"] == "true"


@pytest.mark.slow
@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_memory_of_every_container_is_limited_and_the_limit_can_be_chosen(files: tuple[Path, ...]) -> None:
    names = set(re.findall(r"\$\{(\w+_MEMORY)", VARIABLES))
    by_default = composed(*files)["services"]
    chosen = composed(*files, variables=SECRETS | dict.fromkeys(names, "77m"))["services"]
    for name, service in by_default.items():
        assert re.fullmatch(r"\d+[mg]", service["mem_limit"]), name
        assert chosen[name]["mem_limit"] == "77m", name


@pytest.mark.parametrize("profile", ["paper", "modern"])
def test_the_containers_of_a_gpu_get_the_memory_that_the_chart_gives_them(profile: str) -> None:
    chart = yaml.safe_load((ROOT / "k8s/values.yaml").read_text(encoding="utf-8"))["memory"][profile]
    limits = {name: service["mem_limit"] for name, service in composed(BASE, GPU)["services"].items()}
    for service, memory in chart.items():
        assert int(limits[f"{service}-service"].removesuffix("g")) >= int(memory["limit"].removesuffix("Gi")), service


@pytest.mark.slow
def test_an_uploaded_model_fits_beside_the_evaluator() -> None:
    units = {"m": 2**20, "g": 2**30}
    for variables in ({}, {"EVALUATOR_MEMORY": "2g"}, {"EVALUATOR_MEMORY": "16g"}):
        evaluator = composed(BASE, variables=SECRETS | variables)["services"]["evaluator-service"]
        assert evaluator["environment"]["CONTRAFACT_UPLOAD_MEMORY_MIB"] == "0", "derived from the container's limit"
        limit = int(evaluator["mem_limit"][:-1]) * units[evaluator["mem_limit"][-1]]
        assert default_memory_mib("cpu", limit) * 2**20 + EVALUATOR_BYTES <= limit
    chosen = composed(BASE, variables=SECRETS | {"CONTRAFACT_UPLOAD_MEMORY_MIB": "1024"})["services"]
    assert chosen["evaluator-service"]["environment"]["CONTRAFACT_UPLOAD_MEMORY_MIB"] == "1024"


def test_a_volume_remembers_quarantined_models(services: dict[str, Service]) -> None:
    evaluator = services["evaluator-service"]
    folder = evaluator["environment"]["CONTRAFACT_QUARANTINE"]
    volumes = dict(volume.split(":")[:2] for volume in evaluator["volumes"] if ":" in volume)
    assert volumes["quarantine"] == folder
    assert "quarantine" in composed(BASE)["volumes"]
    # A named volume takes its owner from the folder in the image, so that user 10001 may write to it.
    (step,) = [
        operand
        for keyword, operand in stages(ROOT / "Dockerfile")["base"][1]
        if "install -d" in operand and keyword == "RUN"
    ]
    owned = re.search(r"install -d -o contrafact -g contrafact ([^&\\]*)", step)
    assert owned
    assert folder in owned[1].split()


@pytest.mark.slow
def test_models_compute_with_the_threads_that_one_variable_names() -> None:
    services = composed(BASE, variables=SECRETS | {"CONTRAFACT_THREADS": "3", "MODEL_CPUS": "4"})["services"]
    for name in (*MODEL_SERVICES, "trainer"):
        environment = services[name]["environment"]
        assert environment["OMP_NUM_THREADS"] == environment["CONTRAFACT_THREADS"] == "3", name
        assert services[name]["cpus"] == "4", name
    assert composed(BASE)["services"]["trainer"]["environment"]["OMP_NUM_THREADS"] == "1"


@pytest.mark.slow
def test_every_part_that_decodes_images_has_the_same_limit() -> None:
    limit = {"CONTRAFACT_MAX_IMAGE_PIXELS": "1234"}
    for chosen, expected in ({}, str(ImageSettings().max_image_pixels)), (limit, "1234"):
        services = composed(BASE, variables=SECRETS | chosen)["services"]
        for name in OURS - {"weights"}:
            assert services[name]["environment"]["CONTRAFACT_MAX_IMAGE_PIXELS"] == expected, name


def test_the_language_server_is_where_and_what_the_paper_profile_says() -> None:
    server = load_profile("paper").language.server
    assert server
    container = composed(*FILES["paper"])["services"]["language-server"]
    words = [word for word in container["command"] if word != "--jinja"]  # the one option without a value
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert container["network_mode"] == "service:llm-service"
    assert server.url == f"http://{options['--host']}:{options['--port']}/v1"
    assert probe(container)[0] == int(options["--port"])
    assert options["--alias"] == server.model
    assert int(options["--parallel"]) == server.concurrency
    assert server.cache
    assert int(options["--ctx-size"]) == server.cache.context
    assert options["--cache-type-k"] == options["--cache-type-v"] == "q8_0"
    assert server.cache.value_bytes == 34 / 32, "a block of 32 values and its scale in float16"
    assert options["--flash-attn"] == "on", "without it llama.cpp quantises no values"
    assert container["command"].index("--jinja") < container["command"].index("--chat-template")
    (model_file,) = [
        item for item in hub_files(load_profile("paper"), servers=True) if server.revision == item.revision
    ]
    model = Path(options["--model"])
    assert model.parent == Path(
        "/weights/hub", f"models--{model_file.repository.replace('/', '--')}/snapshots", model_file.revision
    )
    assert model.match(model_file.patterns[0])
    assert "--servers" in composed(*FILES["paper"])["services"]["weights"]["command"]


def test_tgi_is_where_and_what_the_profile_says() -> None:
    server = load_profile("paper-tgi").language.server
    assert server
    container = composed(*FILES["paper-tgi"])["services"]["language-server"]
    *words, scores = container["command"]
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert container["network_mode"] == "service:llm-service"
    assert server.url == f"http://{options['--hostname']}:{options['--port']}"
    assert probe(container) == (int(options["--port"]), "/health")
    assert server.model.replace("/", "--") in options["--model-id"]
    assert options["--model-id"].endswith(server.revision)
    assert scores == "--enable-prefill-logprobs"
    fetched = {(item.repository, item.revision) for item in hub_files(load_profile("paper-tgi"), servers=True)}
    assert (server.model, server.revision) in fetched
    example = yaml.safe_load((ROOT / "k8s/examples/tgi.yaml").read_text(encoding="utf-8"))
    (sidecar,) = example["services"]["llm"]["sidecars"]
    share = container["command"].index("--cuda-memory-fraction") + 1
    assert sidecar["image"] == container["image"]
    assert [word for at, word in enumerate(sidecar["args"]) if at != share] == [
        word for at, word in enumerate(container["command"]) if at != share
    ]


def test_vllm_is_where_and_what_the_profile_for_24_gb_says(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FILES["modern-24gb"]
    services = composed(*files)["services"]
    container = services["language-server"]
    server = load_profile("modern-24gb").language.server
    assert server
    assert server == load_profile("modern-24gb").caption.server, "one server for both"
    model, *words = container["command"]
    words.remove("--enforce-eager")  # the one option without a value
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert container["entrypoint"] == ["vllm", "serve"]
    assert (model, options["--revision"]) == (server.model, server.revision)
    assert container["network_mode"] == "service:llm-service"
    assert server.url == f"http://127.0.0.1:{options['--port']}/v1", "for llm-service, whose network it shares"
    assert probe(container) == (int(options["--port"]), "/health")
    assert int(options["--max-num-seqs"]) == server.concurrency
    assert server.cache
    assert server.cache.context % int(options["--max-model-len"]) == 0
    environment = services["caption-service"]["environment"]
    monkeypatch.setenv(server.url_variable, environment[server.url_variable])
    seen = load_profile("modern-24gb").caption.server
    assert seen
    assert urlsplit(seen.url).hostname == "llm-service", "for caption-service, from another network"
    assert urlsplit(seen.url).port == int(options["--port"])
    for name in ("diffusion-service", "evaluator-service"):
        assert services[name]["depends_on"]["language-server"] == {"condition": "service_healthy"}
    assert any(folder.startswith("/cache:exec") for folder in container["tmpfs"])
    assert container["environment"]["HOME"] == "/cache"
    fetched = {(item.repository, item.revision) for item in hub_files(load_profile("modern-24gb"), servers=True)}
    assert (server.model, server.revision) in fetched


@pytest.mark.slow
@pytest.mark.parametrize("files", [FILES["modern-24gb"]])
def test_each_part_on_a_gpu_can_have_a_card_of_its_own(files: tuple[Path, ...]) -> None:
    cards = {
        f"{name}_GPU": str(number) for number, name in enumerate(("CAPTION", "LANGUAGE", "DIFFUSION", "EVALUATOR"))
    }

    def card(service: Service) -> list[str]:
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        return list(device["device_ids"])

    services = composed(*files, variables=SECRETS | cards)["services"]
    names = ("caption-service", "language-server", "diffusion-service", "evaluator-service", "trainer")
    assert [card(services[name]) for name in names] == [["0"], ["1"], ["2"], ["3"], ["3"]]


def test_the_check_waits_for_everything_and_is_doctor(services: dict[str, Service]) -> None:
    check = services["check"]
    assert check["command"] == ["contrafact", "doctor"]
    waited = {name for name, other in check["depends_on"].items() if other["condition"] == "service_healthy"}
    assert {*MODEL_SERVICES, "gateway", "worker"} <= waited
    assert check["profiles"] == ["check"]
