import jax
import pytest

import dape_jax
from dape_jax import encodings

ADDITIVE = {
    "alibi",
    "cable",
    "fire",
    "fox",
    "kerple_2_para_bias",
    "kerple_3_para_bias",
    "kerple_3_para_log",
    "kerple_log",
    "kerple_power",
    "sandwich",
    "t5",
    "transformer_xl",
}
UNBIASED = {"nope", "rope"}
OTHERS = {
    "cope",
    "kerple_1_para_wht",
    "kerple_2_para_wht",
    "kerple_bias_wht",
    "learned",
    "rope_dynamic_ntk",
    "rope_ntk",
    "rope_pi",
    "rope_yarn",
    "sinusoidal",
    "xpos",
}


def test_names_are_the_bases_and_dape_around_them():
  expected = ADDITIVE | UNBIASED | OTHERS
  expected |= {
      p + b for p in ("dape_", "dape_v2_") for b in ADDITIVE | UNBIASED
  }
  expected |= {"dape_static_" + b for b in ADDITIVE}
  assert sorted(expected) == list(encodings.names())


def test_modifiers_are_options_of_every_name():
  made = encodings.make(
      "dape_rope", num_heads=3, ssmax=True, sink=True, soft_cap=20.0
  )
  inner = dape_jax.Dape(dape_jax.Rope(num_heads=3))
  expected = encodings.SSMax(inner)
  expected = encodings.LearnedSink(expected)
  assert made == encodings.SoftCap(expected, cap=20.0)
  made = encodings.make("nope", num_heads=3, log_n=64)
  expected = encodings.LogN(dape_jax.Nope(num_heads=3), train_length=64)
  assert made == expected


def test_make_builds_what_the_classes_build():
  made = encodings.make("dape_kerple_log", num_heads=12, width=16)
  assert made == dape_jax.Dape(dape_jax.KerpleLog(num_heads=12), width=16)
  made = encodings.make("dape_v2_rope", num_heads=3, kernel_size=5, edge="zero")
  assert made == dape_jax.DapeV2(
      dape_jax.Rope(num_heads=3), kernel_size=5, edge="zero"
  )


def test_fire_is_leaky_only_inside_dape():
  assert encodings.options("fire")["negative_slope"] == 0.0
  made = encodings.make("dape_fire", num_heads=2, threshold=64.0)
  assert made.base.negative_slope == 0.01
  assert made.base.threshold == 64.0


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("kerple_logg", {}, 'Did you mean "kerple_log"'),
        ("alibi", {"width": 32}, 'encoding "alibi" has no option "width"'),
        ("dape_fire", {"treshold": 1.0}, 'Did you mean "threshold"'),
        ("dape_rope", {"width": 0}, "width=0"),
        ("dape_v2_nope", {"kernel_size": 4}, "kernel_size=4: must be odd"),
        ("dape_v2_nope", {"edge": "wrap"}, "edge='wrap'"),
        ("fire", {"fire_layers": 3}, "fire_layers=3: must be 1 or 2"),
        ("fire", {"threshold": -1.0}, "threshold=-1.0"),
        ("nope", {"num_heads": 0}, "num_heads=0"),
        ("rope", {"ssmax": 1}, "ssmax=1: must be bool"),
        ("rope", {"ssmax": True, "log_n": 64}, "choose one"),
        ("rope", {"log_n": 1}, "log_n=1: must be a training length"),
        ("rope", {"soft_cap": -1.0}, "soft_cap=-1.0: must be above 0"),
        ("dape_alibi", {"form": "sum"}, "form='sum': must be one of"),
        ("dape_static_alibi", {"form": "concat"}, 'no option "form"'),
        ("dape_cope", {}, 'unknown encoding "dape_cope"'),
        ("rope", {"rope_theta": 0.0}, "rope_theta=0.0: must be above 0"),
        ("fire", {"threshold": float("nan")}, "must be a finite number"),
        ("fire", {"threshold": "x"}, "must be a finite number"),
        ("dape_nope", {"width": 32.0}, "width=32.0: must be int"),
        (
            "dape_v2_nope",
            {"kernel_size": True},
            "kernel_size=True: must be int",
        ),
    ],
)
def test_invalid_names_and_options_are_rejected(name, options, message):
  with pytest.raises(dape_jax.ConfigError, match=message.replace("(", r"\(")):
    encodings.make(name, **{"num_heads": 2, **options})


def test_dape_cannot_wrap_dape():
  inner = dape_jax.Dape(dape_jax.Nope(num_heads=2))
  with pytest.raises(dape_jax.ConfigError, match="but not another DAPE"):
    dape_jax.DapeV2(inner)


@pytest.mark.parametrize(
    "base, message",
    [
        (encodings.Cope(num_heads=2), "base=Cope: DAPE wraps an"),
        (encodings.KerpleBiasWht(num_heads=2), "that adds a bias"),
    ],
)
def test_dape_wraps_additive_encodings_only(base, message):
  for wrapper in (dape_jax.Dape, dape_jax.DapeV2):
    with pytest.raises(dape_jax.ConfigError, match=message):
      wrapper(base).init(jax.random.key(0), method="score_mod")


def test_the_static_control_needs_a_static_bias():
  module = dape_jax.Dape(dape_jax.Rope(num_heads=2), form="static")
  with pytest.raises(dape_jax.ConfigError, match="Rope has no static bias"):
    module.init(jax.random.key(0), method="score_mod")


def test_sums_of_incompatible_encodings_are_rejected():
  alibi = dape_jax.Alibi(num_heads=2)
  with pytest.raises(dape_jax.ConfigError, match="a has 3 heads and b 2"):
    dape_jax.Sum(dape_jax.Rope(num_heads=3), alibi)
  summed = dape_jax.Sum(alibi, encodings.Cope(num_heads=2))
  with pytest.raises(dape_jax.ConfigError, match="b: Cope does more"):
    summed.init(jax.random.key(0), method="score_mod")


@pytest.mark.parametrize("name", encodings.names())
def test_score_modifiers_cross_jit(name):
  encoding = encodings.make(name, num_heads=2)

  @jax.jit
  def through_jit(score_mod):
    return score_mod

  variables = encoding.init(jax.random.key(0), method="score_mod")
  once = encoding.apply(variables, method="score_mod")
  again = encoding.apply(variables, method="score_mod")
  if once is None:
    assert name not in ADDITIVE
    return
  through_jit(once)
  through_jit(again)
  assert through_jit._cache_size() == 1
