"""benchmarks/vllm_engine.py with a vLLM that sleeps: its requests to the engines, its figures and its output."""

import json
import os
import re
import subprocess
import sys

from tests.conftest import CHECKOUT

VLLM = '''
import os, sys, time, types

class SamplingParams:
    def __init__(self, **given):
        self.__dict__.update(given)

class LLM:
    """A prompt takes 60 ms, a step 4 ms, 2 ms with the plugin. First tokens are 5, of log probability -1 or -1.25."""

    def __init__(self, model, load_format, skip_tokenizer_init, compilation_config, **named):
        assert load_format == "dummy" and skip_tokenizer_init and os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        self.is_ours = bool(os.environ["KERNELDERBY_VLLM"])
        if self.is_ours:
            norm, unused = (types.SimpleNamespace(ran=lambda ran=ran: ran) for ran in (["ours", "theirs"], []))
            sys.modules["kernelderby_winners"] = types.SimpleNamespace(OPERATORS={"rms_norm": norm, "mrope": unused})
        assert named.get("attention_config") == ({"backend": "CUSTOM"} if self.is_ours else None)
        if os.path.exists(f"{model}/fail"):
            raise RuntimeError("no engine")
        print("vLLM logs to stdout")

    def apply_model(self, function):
        pass

    def generate(self, prompts, wanted, use_tqdm):
        time.sleep(0.06 + (2 if self.is_ours else 4) * 1e-3 * wanted.max_tokens)
        first = [{5: types.SimpleNamespace(logprob=-1.25 if self.is_ours else -1.0)}]
        output = types.SimpleNamespace(token_ids=[5] * wanted.max_tokens, logprobs=first)
        return [types.SimpleNamespace(outputs=[output]) for _ in prompts]
'''


def run(folder, *more):
    (folder / "vllm").mkdir()
    (folder / "vllm" / "__init__.py").write_text(VLLM)
    words = ["--layers", "3", "--batch", "2", "--rounds", "1", "--tokens", "16", "--limit", "30", *more]
    return subprocess.run(
        [sys.executable, str(CHECKOUT / "benchmarks" / "vllm_engine.py"), *words, "--out", str(folder / "out")],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_two_engines_in_turn(tmp_path):
    found = run(tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    *_, line, ran = found.stdout.splitlines()
    assert ran == "rms_norm ran ours, theirs"
    row = re.match(r" +2 +([\d,]+) +([\d,]+) +([\d.]+)%", line)
    before, after, gain = (float(each.replace(",", "")) for each in row.groups())
    assert 3500 <= before < 7500 and 1500 <= after < 5500  # late where a machine is busy
    assert abs(gain - (before / after - 1) * 100) < 0.2
    assert line.endswith("100%, 0.250  100%, 0.000")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3MoeForCausalLM"] and config["num_hidden_layers"] == 3


def test_an_engine_that_does_not_start_is_a_line(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fail").touch()
    found = run(tmp_path)
    assert found.returncode == 1 and "the engine vllm ended; its log says why" in found.stdout
    assert "RuntimeError: no engine" in (tmp_path / "out" / "vllm.log").read_text()
