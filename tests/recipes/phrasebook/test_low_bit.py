"""The phrasebook below 16 bits: each cell has its words and its source, the loops stand alone,
and the comparisons can fail.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from amp_course.recipes.phrasebook import LOW_BIT

ROOT = Path(__file__).parents[3]
SLUGS = [library.slug for library in LOW_BIT.libraries]
SOURCES = {
    "transformer_engine": r"transformer_engine/[\w/]+\.(py|cuh)",
    "torchao": r"torchao/[\w/]+\.py",
    "deepseek_v3": r"section 3\.3(\.\d)?(, 3\.3\.\d|; inference/kernel\.py of "
    r"deepseek-ai/DeepSeek-V3)?",
    "microxcaling": r"mx/\w+\.py",
}


def test_each_library_has_short_words_and_a_source_for_everything():
    assert SLUGS == ["transformer_engine", "torchao", "deepseek_v3", "microxcaling"]
    assert len(LOW_BIT.phrases) == len({phrase.thing for phrase in LOW_BIT.phrases}) >= 20
    for phrase in LOW_BIT.phrases:
        assert list(phrase.words) == list(phrase.sources) == SLUGS
        for slug, words in phrase.words.items():
            assert 0 < len(words.strip()) <= 240 and words.count("`") % 2 == 0, (phrase.thing, slug)
            assert re.fullmatch(SOURCES[slug], phrase.sources[slug]), (phrase.thing, slug)


def test_torchao_alone_is_run_and_in_the_version_that_is_installed():
    assert [library.slug for library in LOW_BIT.libraries if not library.not_run] == ["torchao"]
    for library in LOW_BIT.libraries:
        assert library.source.startswith("https://") and library.version
    (torchao,) = LOW_BIT.only("torchao").libraries
    pins = (ROOT / "tools/phrasebook-constraints.txt").read_text()
    assert f"torchao=={torchao.version}\n" in pins


def test_it_shows_some_topics_and_some_libraries():
    shown = LOW_BIT.on("scaling").only("microxcaling", "torchao")
    text, html = repr(shown), shown._repr_html_()
    assert "tensorwise" in text and "DelayedScaling(" not in text and "dither" not in text
    assert text.index("torchao ") > text.index("microxcaling ")
    assert html.count("<th ") == 2 + len(shown.phrases)
    assert html.count('title="torchao/float8/config.py"') >= 3
    assert "ScalingGranularity.<wbr>TENSORWISE" in html
    assert "not run, because no package index has it" in html
    assert max(map(len, repr(LOW_BIT).splitlines()[: -len(LOW_BIT.libraries)])) <= 110
    topics = ("layer", "scaling", "formats", "rounding", "memory")
    assert sum(len(LOW_BIT.on(topic).phrases) for topic in topics) == len(LOW_BIT.phrases)


def test_what_is_not_there_is_refused():
    words = "no library is called 'apex': the phrasebook has transformer_engine, torchao,"
    with pytest.raises(ValueError, match=words):
        LOW_BIT.only("apex")
    with pytest.raises(ValueError, match="no topic is called 'speed': the phrasebook has layer, "):
        LOW_BIT.on("speed")


@pytest.mark.parametrize(
    ("kind", "dtype"), [("E4M3", torch.float8_e4m3fn), ("E5M2", torch.float8_e5m2)]
)
def test_the_rounding_in_numpy_is_torchs_cast(load, kind, dtype):
    """Held against every fp16 number within the format's range, and between:
    a different step for each of them.
    """
    low_bit = load("phrasebook_low_bit")
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.float16).float()
    limit = torch.finfo(dtype).max
    values = halves[halves.isfinite()].clamp(-limit, limit)
    found = low_bit.rounded(values.double().numpy(), getattr(low_bit, kind))
    assert np.array_equal(found, values.to(dtype).double().numpy())
    far = low_bit.rounded(np.array([1e9, -1e9]), getattr(low_bit, kind))
    assert far.tolist() == [limit, -limit]


@pytest.mark.parametrize("by_row", [False, True])
def test_fp8_in_numpy_is_fp8_in_torch(load, by_row):
    low_bit = load("phrasebook_low_bit")
    values = torch.randn(48, 32, generator=torch.Generator().manual_seed(1))
    values *= torch.logspace(-5, 5, 48)[:, None]
    amax = values.abs().amax(1, keepdim=True) if by_row else values.abs().max()
    scale = (448 / amax.double()).float()
    if by_row:
        scale = torch.exp2(scale.log2().floor())
    wanted = (values * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / scale
    assert np.array_equal(low_bit.through_fp8(values.numpy(), low_bit.E4M3, by_row), wanted.numpy())


SCRIPT = """
import sys
print("some library says something")
print("torchao, first: right")
print(("" if sys.argv[1] == "right" else "WRONG: ") + "torchao, second")
if sys.argv[1] == "fails":
    raise OSError("no such thing")
sys.exit(sys.argv[1] != "right")
"""


@pytest.mark.parametrize("argument", ["right", "wrong", "fails"])
def test_what_a_script_found_is_shown_and_counts(load, monkeypatch, tmp_path, capsys, argument):
    main = load("phrasebook")
    install = sys.modules["install"]
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/script.py").write_text(
        SCRIPT.replace("WRONG: ", "") if argument == "fails" else SCRIPT
    )
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "PYTHON", sys.executable)
    assert main.checked("torchao", "script.py", argument) == (argument != "right")
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "torchao, first: right",
        f"{'WRONG: ' * (argument == 'wrong')}torchao, second",
    ]
    assert ("no such thing" in printed.err) == (argument == "fails")


def test_torchao_is_asked_for_all_that_the_phrasebook_says_of_it(load, monkeypatch):
    main = load("phrasebook")
    calls = []
    monkeypatch.setattr(main, "checked", lambda *arguments: calls.append(arguments) or 1)
    assert main.below_16_bits() == 1
    ((name, script, version, *rest),) = calls
    assert (name, script, version) == ("torchao", "phrasebook_low_bit.py", "0.18.0")
    assert "torchao.optim.AdamW8bit" in rest and rest.index("--names") < rest.index("--files")
    assert set(rest[rest.index("--files") + 1 :]) == {
        phrase.sources["torchao"] for phrase in LOW_BIT.phrases
    }
