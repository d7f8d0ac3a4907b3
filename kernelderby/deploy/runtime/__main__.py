"""The solutions that load and run on this machine, operator by operator."""

from __future__ import annotations

import torch

from .operators import DATA, OPERATORS
from .solutions import PREFIX, can_run, check_libraries, function_of


def main() -> None:
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    is_measured = name in DATA["gpus"]
    print(f"{PREFIX} {DATA['version']} on {name}, torch {torch.__version__}")
    print(f"measured on {DATA['gpus'][0]}, {DATA['measured']}, {DATA['protocol']}, times of CUDA graphs")
    print(f"CUDA libraries that load here: {len(check_libraries())}")
    if not is_measured:
        print("Another device than the measured one: libraries or plain torch run.")
    width = max(map(len, OPERATORS))
    for operator in OPERATORS.values():
        solutions = operator.about["solutions"]
        able = [each for each, about in solutions.items() if can_run(about, device, is_measured)]
        runs = [each for each in able if function_of(each, solutions[each]) is not None]
        shapes = len(operator.selector.points)
        print(f"{operator.name:{width}}  {shapes:3} {'shapes' if shapes != 1 else 'shape '}  {', '.join(runs)}")


if __name__ == "__main__":
    main()
