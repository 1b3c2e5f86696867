from __future__ import annotations

from pathlib import Path

import pytest

from service.choices import Above, ArenaScope, Compile, Fill, Phase, Rows
from service.config import NOT_BUILT, Config, ModelConfig, load, parse_model
from service.errors import ConfigError
from service.messages import GraphMode
from service.tensors import Datatype

FULL = """
worker:
  name: ""
  listen: 127.0.0.1:8001
  admin_listen: 127.0.0.1:8002
  metrics_listen: 127.0.0.1:8003
  probe_listen: 127.0.0.1:8004
  frontends: 0
  device: auto
  allowed_factories: ["service.models.demo:*"]
  state_dir: ~/.local/state/graphcache
  default_deadline: none
  drain: 15s
  limits: {message: 64MiB, waiting: 1024, waiting_bytes: 1GiB, streams: 100}
cache:
  budget: 512MiB
  arena: model
  capture: {background: true, shadow: false}
  audit: 0.1%
  prewarm: {at_most: 20s, graphs: 32, list: [{model: encoder, shape: {batch: 4, seq: 64}, variant: {adapter: legal}}]}
profile_store: sqlite
telemetry: {otlp: none, sample: 1%, keep: [fallback, error, slow], metrics: prometheus, logs: text}
models:
  - name: encoder
    version: "1"
    factory: service.models.demo:encoder
    args: {}
    weights: encoder.safetensors
    inputs:
      tokens: {datatype: INT64, shape: [batch, seq], pad: 0, range: [0, 29999]}
      mask:   {datatype: BOOL,  shape: [batch, seq], fill: valid}
    outputs:
      embedding: {datatype: FP32, shape: [batch, 256]}
    axes:
      batch: {max: 64, buckets: auto, above: split}
      seq:   {max: 512, buckets: [32, 64, 128, 256, 512], above: reject}
    rows: auto
    variants: {adapter: [base, legal]}
    state: [{buffer: kv, index_input: slot, scratch: 1}]
    phase: any
    batching: {axis: batch, max_wait: 2ms}
    compile: none
    mode: auto
    tolerance: {FP32: {rtol: 1e-3, atol: 1.0e-5}}
    examples: encoder.npz
"""


def load_text(folder: Path, text: str, *sets: str) -> Config:
    path = folder / "worker.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, sets)


def test_every_documented_key_is_read(tmp_path: Path) -> None:
    """The whole documented file is accepted, and each value arrives as what it means."""
    config = load_text(tmp_path, FULL)
    worker, cache, (model,) = config.worker, config.cache, config.models
    assert config.base_dir == tmp_path.resolve()
    assert config.state_dir == Path("~/.local/state/graphcache").expanduser()
    assert (worker.listen, worker.probe_listen, worker.device) == ("127.0.0.1:8001", "127.0.0.1:8004", "auto")
    assert (worker.default_deadline, worker.drain) == (None, 15.0)
    assert worker.limits.model_dump() == {"message": 64 << 20, "waiting": 1024, "waiting_bytes": 1 << 30, "streams": 100}
    assert (cache.budget.resolve(0), cache.arena, cache.capture.background) == (512 << 20, ArenaScope.MODEL, True)
    assert cache.audit == 0.001
    assert (cache.prewarm.at_most, cache.prewarm.graphs) == (20.0, 32)
    assert cache.prewarm.list[0].model_dump() == {
        "model": "encoder",
        "version": "",
        "shape": {"batch": 4, "seq": 64},
        "variant": {"adapter": "legal"},
    }
    assert model.inputs["tokens"].range == (0, 29999)
    assert (model.inputs["mask"].fill, model.inputs["mask"].datatype) == (Fill.VALID, Datatype.BOOL)
    assert model.outputs["embedding"].shape == ("batch", 256)
    assert (model.axes["batch"].buckets, model.axes["batch"].above) == (None, Above.SPLIT)
    assert model.axes["seq"].buckets == (32, 64, 128, 256, 512)
    assert (model.rows, model.phase, model.compile, model.mode) == (Rows.AUTO, Phase.ANY, Compile.NONE, GraphMode.AUTO)
    assert model.variants == {"adapter": ("base", "legal")}
    assert model.state[0].model_dump() == {"buffer": "kv", "index_input": "slot", "scratch": 1}
    assert (model.batching.axis, model.batching.max_wait) == ("batch", 0.002)
    assert model.tolerance[Datatype.FP32].model_dump() == {"rtol": 1e-3, "atol": 1e-5}


@pytest.mark.parametrize("text", ["", "worker:\ncache:\nmodels:\n", "# nothing\n"])
def test_an_empty_file_means_the_defaults(tmp_path: Path, text: str) -> None:
    """A file without content, or with headings only, is a worker without models."""
    config = load_text(tmp_path, text)
    assert config.models == ()
    assert config.worker.drain == 15.0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        # unknown keys
        ("models.0.inputs.tokens.datatyp=INT64", "models[0].inputs.tokens.datatyp: unknown key"),
        ("wroker={}", "wroker: unknown key"),
        ("worker.limits.mesage=1MiB", "worker.limits.mesage: unknown key"),
        ("telemetry.colour=red", "telemetry.colour: unknown key"),
        ("cache.prewarm.list.0.size=3", "cache.prewarm.list[0].size: unknown key"),
        # wrong types
        ("worker=3", "worker: must be a mapping, not 3"),
        ("models={}", "models: must be a list, not {}"),
        ("worker.listen=8001", "worker.listen: must be text (numbers and words like yes in quotes), not 8001"),
        ("worker.limits.waiting=many", "worker.limits.waiting: must be a valid integer, not 'many'"),
        ("worker.limits.waiting=true", "worker.limits.waiting: must be a valid integer, not True"),
        ("worker.limits.waiting=0", "worker.limits.waiting: must be greater than or equal to 1, not 0"),
        ("cache.capture.background=1", "cache.capture.background: must be a valid boolean, not 1"),
        ("models.0.version=1", "models[0].version: must be text (numbers and words like yes in quotes), not 1"),
        ("models.0.variants.adapter=[on]", "models[0].variants.adapter[0]: must be text (numbers and words like yes in quotes), not True"),
        ("models.0.inputs.tokens.pad=zero", "models[0].inputs.tokens.pad: must be a number or a bool, not 'zero'"),
        ("models.0.inputs.tokens.range=[1]", "models[0].inputs.tokens.range: must be [low, high], two integers, not [1]"),
        ("models.0.inputs.tokens.range=[a, b]", "models[0].inputs.tokens.range: must be [low, high], two integers, not ['a', 'b']"),
        ("models.0.inputs.tokens.range=[9, 1]", "models[0].inputs.tokens.range: must be [low, high] with low ≤ high, not [9, 1]"),
        ("models.0.inputs.tokens.shape=[[1]]", "models[0].inputs.tokens.shape[0]: must be an axis name or a size, not [1]"),
        ("models.0.inputs.tokens.shape=[0]", "models[0].inputs.tokens.shape[0]: must be at least 1, not 0"),
        ("models.0.axes.batch.buckets=some", "models[0].axes.batch.buckets: must be auto or a list of sizes, not 'some'"),
        ("models.0.axes.batch.buckets=[]", "models[0].axes.batch.buckets: must be auto or a list of sizes, not []"),
        ("models.0.axes.batch.buckets=[4, 2]", "models[0].axes.batch.buckets: must be ascending sizes, not [4, 2]"),
        ("models.0.axes.batch.buckets=[2, 2]", "models[0].axes.batch.buckets: must be ascending sizes, not [2, 2]"),
        ("models.0.axes.batch.buckets=[0, 2]", "models[0].axes.batch.buckets: must be ascending sizes, not [0, 2]"),
        # words outside of their set
        ("models.0.rows=maybe", "models[0].rows: must be 'auto', 'independent' or 'dependent', not 'maybe'"),
        ("models.0.mode=piecewise", "models[0].mode: must be 'none', 'full' or 'auto', not 'piecewise'"),
        ("models.0.inputs.mask.fill=real", "models[0].inputs.mask.fill: must be 'valid', 'length' or 'position', not 'real'"),
        ("cache.arena=all", "cache.arena: must be 'model' or 'graph', not 'all'"),
        ("worker.device=gpu", "worker.device: must be auto, cpu or cuda:N, not 'gpu'"),
        # quantities
        ("worker.drain=15", "worker.drain: must be a duration such as 2ms, 15s or 10m, not 15"),
        ("worker.default_deadline=soon", "worker.default_deadline: must be a duration such as 2ms, 15s or 10m, not 'soon'"),
        ("worker.limits.message=64", None),
        ("worker.limits.message=64MB/s", "worker.limits.message: must be a size such as 64MiB, not '64MB/s'"),
        ("worker.limits.message=-1", "worker.limits.message: must be a size such as 64MiB, not -1"),
        ("cache.budget=5", None),
        ("cache.budget=half", "cache.budget: must be a size such as 512MiB or a percentage such as 5%, not 'half'"),
        ("cache.budget=101%", "cache.budget: must be a percentage such as 5%, not '101%'"),
        # addresses
        ("worker.listen=localhost", "worker.listen: must be host:port or unix:/path, not 'localhost'"),
        ("worker.listen=localhost:70000", "worker.listen: must be host:port or unix:/path, not 'localhost:70000'"),
        ("worker.listen=''", "worker.listen: can't be empty"),
        ("worker.admin_listen=''", None),
        ("worker.listen='[::1]:0'", None),
        ("worker.listen=unix:/run/graphcache.sock", None),
        # models
        ("models.0.factory=''", "models[0]: needs either factory or program"),
        ("models.0.program=encoder.pt2", "models[0]: needs either factory or program"),
        ("models.0.name=a/b", "models[0].name: must consist of letters, digits, '.', '_' and '-', not 'a/b'"),
        ("cache.prewarm.list.0.model=decoder", "cache.prewarm.list[0].model: no model is named decoder"),
        ("cache.prewarm.list.0.version='2'", "cache.prewarm.list[0].version: encoder has no version 2"),
        ("cache.prewarm.list.0.shape={}", "cache.prewarm.list[0].shape: must have at least 1 item after validation, not 0, not {}"),
        # not built yet
        ("worker.frontends=2", "worker.frontends: not built yet"),
        ("worker.tls={certificate: a.pem}", "worker.tls: not built yet"),
        ("requests={shadow: false}", "requests: not built yet"),
        ("profile_store=memcached://me:secret@cache", "profile_store: must be sqlite, none, or a URL such as redis://host:6379"),
        ("telemetry.metrics=otlp", "telemetry.metrics: not built yet"),
        # telemetry
        ("telemetry.otlp=http://collector:4317", None),
        ("telemetry.otlp=collector:4317", None),
        ("telemetry.otlp=collector", "telemetry.otlp: must be host:port or unix:/path, not 'collector'"),
        (
            "telemetry.otlp=ftp://collector:4317",
            "telemetry.otlp: must be none, http://host:port, https://host:port or host:port, not 'ftp://collector:4317'",
        ),
        ("telemetry.sample=2", "telemetry.sample: must be a percentage such as 5%, not 2"),
        ("telemetry.keep=[fallbacks]", "telemetry.keep[0]: must be 'fallback', 'error' or 'slow', not 'fallbacks'"),
        ("telemetry.logs=xml", "telemetry.logs: must be 'text' or 'json', not 'xml'"),
        ("cache.prewarm.list.0.shape.rows=1", "cache.prewarm.list[0].shape.rows: encoder has no such axis"),
        ("cache.prewarm.list.0.shape.seq=513", "cache.prewarm.list[0].shape.seq: 513 is above the axis' maximum, 512"),
        ("cache.prewarm.list.0.shape={batch: 4}", "cache.prewarm.list[0].shape.seq: missing; a shape names every axis"),
        (
            "cache.prewarm.list.0.variant={adapter: medical}",
            "cache.prewarm.list[0].variant.adapter: encoder has no variant adapter=medical",
        ),
        # overrides themselves
        ("worker.drain", "--set worker.drain: must look like a.b=value"),
        ("worker..drain=1s", "--set worker..drain=1s: must look like a.b=value"),
        ("models.1.mode=none", "--set models.1.mode: models has no element 1"),
        ("models.first.mode=none", "--set models.first.mode: models has no element first"),
        ("worker.drain.at=1s", "--set worker.drain.at: worker.drain is not a section"),
        ("models.0.args={", "--set models.0.args:1: "),
    ],
)
def test_one_wrong_key_is_one_line_that_names_it(tmp_path: Path, change: str, problem: str | None) -> None:
    """Each mistake is told in one line that begins with the key's path; None marks neighbours that are right."""
    if problem is None:
        load_text(tmp_path, FULL, change)
        return
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, FULL, change)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(problem)


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """A line for each, so that a user does not find them one by one."""
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, FULL, "worker.drain=15", "worker.frontends=1", "models.0.rwos=auto")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["worker.frontends", "worker.drain", "models[0].rwos"]


@pytest.mark.parametrize("key", NOT_BUILT)
def test_a_key_of_a_feature_to_come_is_never_silently_accepted(tmp_path: Path, key: str) -> None:
    """Whatever stands in the table of what is not built is refused by name."""
    with pytest.raises(ConfigError, match=f"^{key}: not built yet$"):
        load_text(tmp_path, "", f"{key}=something")


def test_zero_is_not_false(tmp_path: Path) -> None:
    """Accepted values are compared with their type: `frontends: false` is not `frontends: 0`."""
    with pytest.raises(ConfigError, match=r"^worker.frontends: not built yet$"):
        load_text(tmp_path, "worker: {frontends: false}")


def test_two_models_may_share_a_name_but_not_the_version(tmp_path: Path) -> None:
    """Several versions may be up; the same one twice is an error at its second place."""
    two = 'models:\n- {name: a, factory: "m:f"}\n- {name: a, version: "2", factory: "m:f"}\n'
    assert len(load_text(tmp_path, two).models) == 2
    with pytest.raises(ConfigError, match=r"^models\[1\].name: a version 1 is models\[0\] already$"):
        load_text(tmp_path, two, 'models.1.version="1"')
    with pytest.raises(ConfigError, match=r"^cache.prewarm.list\[0\].version: missing; a has versions 1, 2$"):
        load_text(tmp_path, two, "cache.prewarm={list: [{model: a, shape: {batch: 1}}]}")


def test_overrides_reach_into_lists_and_make_sections(tmp_path: Path) -> None:
    """`--set` takes list indices in both spellings, makes what is missing, and the last one wins."""
    config = load_text(tmp_path, FULL, "models.0.mode=none", "models[0].axes.seq.max=1024", "models[0].args.width=8", "models.0.mode=full")
    assert config.models[0].mode is GraphMode.FULL
    assert config.models[0].axes["seq"].max == 1024
    assert config.models[0].args == {"width": 8}
    assert load_text(tmp_path, "", "cache.prewarm.at_most=1m").cache.prewarm.at_most == 60.0


def test_the_place_of_a_syntax_error_is_its_line(tmp_path: Path) -> None:
    """YAML that can't be read names the file and the line."""
    with pytest.raises(ConfigError, match=r"worker\.yaml:3: "):
        load_text(tmp_path, "worker:\n  name: a\n drain: 1s\n")


def test_a_key_written_twice_is_an_error(tmp_path: Path) -> None:
    """Plain YAML would silently take the second."""
    with pytest.raises(ConfigError, match=r"worker\.yaml:3: key 'drain' is written twice"):
        load_text(tmp_path, "worker:\n  drain: 1s\n  drain: 2s\n")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """So is one that is no mapping or no text."""
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file or directory"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match=r"worker\.yaml: must be a mapping of sections"):
        load_text(tmp_path, "- worker\n")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml: is not UTF-8 text"):
        load(tmp_path / "binary.yaml")


def test_demo_needs_no_file_and_takes_overrides() -> None:
    """The bundled configuration is a configuration like any other."""
    config = load(None, ["worker.listen=127.0.0.1:0", "models[0].mode=none"], demo=True)
    assert [model.name for model in config.models] == ["mlp", "chain32", "encoder", "decode", "adapters"]
    assert config.worker.listen == "127.0.0.1:0"
    assert config.models[0].mode is GraphMode.NONE


def test_file_and_demo_exclude_each_other(tmp_path: Path) -> None:
    """Neither of them, or both, is a wrong command line."""
    with pytest.raises(ConfigError, match="either a file"):
        load(None)
    with pytest.raises(ConfigError, match="either a file"):
        load(tmp_path / "worker.yaml", demo=True)


def test_a_model_can_come_alone() -> None:
    """A load at run time brings one model's section, as YAML or JSON, checked by the same rules."""
    assert parse_model("{name: a, factory: 'm:f'}") == ModelConfig(name="a", factory="m:f")
    assert parse_model('{"name": "a", "factory": "m:f", "mode": "none"}').mode is GraphMode.NONE
    with pytest.raises(ConfigError, match=r"^model\.inputs\.x\.datatyp: unknown key$"):
        parse_model("{name: a, factory: 'm:f', inputs: {x: {datatyp: FP32}}}")
    with pytest.raises(ConfigError, match=r"^model: must be a mapping, not None$"):
        parse_model("")
