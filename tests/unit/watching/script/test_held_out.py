"""Which lines evaluate held-out examples, by the names of their variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.watching.script.held_out import NamedData

HELD_OUT = {
    "a_formatted_text_in_a_function_that_is_called_with_the_training_set": """
def score(net, raw):
    return net(raw)  # 1
def train(net, raw):
    print(f"epoch {len(raw)} accuracy {score(net, val_raw):.3f}")  # 2
train(net, train_raw)  # 3
""",
    "a_parameter_that_is_passed_on": """
def score(net, raw):
    return net(raw)  # 1
def fit(net, x_train, x_val):
    return score(net, x_val)  # 2
fit(net, x_train, x_val)  # 3
""",
    "an_attribute": """
class Trainer:
    def score(self, loader):
        for batch in loader:
            self.net(batch)  # 1
    def fit(self):
        self.score(self.val_loader)  # 2
trainer.fit(train_config)  # 3
""",
    "several_lines": """
def score(net, raw):
    return net(raw)  # 1
accuracy = score(  # 2
    net,
    x_test,
)
""",
    "a_loop": """
def train(net, loader):
    for a in valid_loader:  # loader
        net(a)  # 1
train(net, train_loader)  # 2
""",
    "only_the_variable_of_the_result": """
def score(net, raw):
    return net(raw)  # 1
val_accuracy = score(net, x)  # 2
""",
}
OTHERS = {
    "a_parameter_named_test_that_is_training_data": """
def score(net, x_test):
    return net(x_test)  # 1
score(net, x_train)  # 2
""",
    "a_loop_over_a_parameter": """
def score(net, loader):
    for test_x in loader:  # loader
        net(test_x)  # 1
score(net, train_loader)  # 2
""",
    "a_result_among_others": """
def score(net, raw):
    return net(raw)  # 1
def fit(net, x):
    print(f"accuracy {score(net, x):.3f}, best of validation {best_val:.3f}")  # 2
fit(net, x_train)  # 3
""",
    "a_list_that_gets_the_result": """
def score(net, raw):
    return net(raw)  # 1
def fit(net, x):
    history_val.append(score(net, x))  # 2
fit(net, x_train)  # 3
""",
    "training_and_validation_in_one_line": """
def score(net, raw):
    return net(raw)  # 1
print(f"{score(net, x_train):.3f} {score(net, x_val):.3f}")  # 2
""",
    "only_a_text": """
def score(net, raw):
    return net(raw)  # 1
print(f"test {score(net, x):.3f}", "x_test")  # 2
""",
    "a_cell_that_is_no_python": "%time net(x_train)  # 1\n",
}


def is_held_out(code: str, folder: Path) -> bool:
    file = folder / "script.py"
    file.write_text(code)
    marks = {line.rpartition("# ")[2]: at for at, line in enumerate(code.splitlines(), 1)}
    lines = [(str(file), marks[mark]) for mark in "123" if mark in marks]
    loader = (str(file), marks["loader"]) if "loader" in marks else None
    return NamedData().is_held_out(lines, loader)


@pytest.mark.parametrize("name", HELD_OUT)
def test_held_out_data_is_known_by_the_name_that_is_passed(name: str, tmp_path: Path) -> None:
    assert is_held_out(HELD_OUT[name], tmp_path)


@pytest.mark.parametrize("name", OTHERS)
def test_other_data_is_not_taken_for_held_out(name: str, tmp_path: Path) -> None:
    assert not is_held_out(OTHERS[name], tmp_path)
