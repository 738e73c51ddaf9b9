import signal
import subprocess

import pytest

from driftvq.experiments.comparison_folder import begin
from driftvq.experiments.engine import Engine, finish
from driftvq.records.comparisons import CELLS, read_cell, update_cell
from driftvq.report import load_comparison, results_table
from tests.experiments.smoke import Ended, Silent, in_process, run_plan, smoke_plan


class Scripted:
    """A process that ends when it is told to."""

    def __init__(self, folder, log):
        self.folder, self.log, self.code = folder, log, None

    def poll(self):
        return self.code

    def wait(self, timeout=None):
        if self.code is None:
            raise subprocess.TimeoutExpired("cell", timeout or 0)
        return self.code

    def send_signal(self, sig):
        self.log.append((self.folder.name, signal.Signals(sig)))
        self.code = 130

    def kill(self):
        self.log.append((self.folder.name, signal.SIGKILL))
        self.code = -9


def done(folder, place):
    update_cell(folder, status="done")
    return Ended(0)


def statuses(folder):
    return {cell.method: cell.status for cell in load_comparison(folder).cells}


def test_a_failing_cell_is_a_row_and_the_others_finish(tmp_path):
    plan = smoke_plan(methods=("vq", "fsq", "sim_vq"))
    begin(tmp_path, plan)
    broken = tmp_path / CELLS / plan.cells[1].name
    config = read_cell(broken).config
    update_cell(broken, config={**config, "data": str(tmp_path / "gone")})
    run_plan(tmp_path, plan)
    finish(tmp_path)
    assert statuses(tmp_path) == {"vq": "done", "fsq": "failed", "sim_vq": "done"}
    table = results_table(load_comparison(tmp_path))
    assert "no such file or folder" in table
    assert "log.txt" in table
    update_cell(broken, config=config)
    again = run_plan(tmp_path, plan)
    assert again.events == [("started", plan.cells[1].name), ("done", plan.cells[1].name)]
    assert set(statuses(tmp_path).values()) == {"done"}


def test_a_process_that_dies_is_a_failed_cell(tmp_path):
    plan = smoke_plan(methods=("vq", "fsq"))

    def start(folder, place):
        return Ended(-9) if folder.name.startswith("vq") else done(folder, place)

    run_plan(tmp_path, plan, start)
    cells = {cell.method: cell for cell in load_comparison(tmp_path).cells}
    assert cells["vq"].status == "failed"
    assert cells["vq"].error == "its process was stopped by SIGKILL, perhaps for lack of memory"
    assert cells["fsq"].status == "done"


def test_no_more_cells_than_jobs_run_at_a_time_and_each_has_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr("driftvq.experiments.engine.POLL_SECONDS", 0)
    plan = smoke_plan(methods=("vq", "fsq", "sim_vq", "ns_vq", "vqvae2"))
    open_places, most = set(), []

    class Slow(Scripted):
        def __init__(self, folder, place):
            super().__init__(folder, [])
            assert place not in open_places
            open_places.add(place)
            most.append(len(open_places))
            self.place, self.polls = place, 0

        def poll(self):
            self.polls += 1
            if self.polls < 3:
                return None
            update_cell(self.folder, status="done")
            open_places.discard(self.place)
            return 0

    run_plan(tmp_path, plan, Slow, jobs=2)
    assert max(most) == 2
    assert set(statuses(tmp_path).values()) == {"done"}


def test_a_cell_waits_for_the_network_that_it_takes_over(tmp_path):
    plan = smoke_plan(methods=("kmeans_afterwards", "autoencoder"))
    events = run_plan(tmp_path, plan, done, jobs=2).events
    autoencoder, kmeans = (next(c.name for c in plan.cells if c.method.name == name)
                           for name in ("autoencoder", "kmeans_afterwards"))  # fmt: skip
    assert events.index(("done", autoencoder)) < events.index(("started", kmeans))


def test_k_means_afterwards_needs_a_finished_network(tmp_path):
    plan = smoke_plan(methods=("kmeans_afterwards", "autoencoder"))

    def start(folder, place):
        return Ended(1) if folder.name.startswith("auto") else in_process(folder, place)

    run_plan(tmp_path, plan, start)
    cells = {cell.method: cell for cell in load_comparison(tmp_path).cells}
    assert cells["kmeans_afterwards"].status == "failed"
    assert "needs the network of autoencoder" in cells["kmeans_afterwards"].error


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_stops_the_cells_and_leaves_them_waiting(tmp_path, monkeypatch, stubborn):
    monkeypatch.setattr("driftvq.experiments.engine.STOP_SECONDS", 0.1)
    plan, log = smoke_plan(methods=("vq", "fsq", "sim_vq")), []

    class Running(Scripted):
        def send_signal(self, sig):
            super().send_signal(sig)
            if stubborn:
                self.code = None

    class Impatient(Silent):
        def tick(self, running):
            raise KeyboardInterrupt

    def start(folder, place):
        update_cell(folder, status="running")
        return Running(folder, log)

    begin(tmp_path, plan)
    with pytest.raises(KeyboardInterrupt):
        Engine(tmp_path, plan, 2, start, Impatient()).run()
    assert [sig for _, sig in log].count(signal.SIGTERM) == 2
    assert [sig for _, sig in log].count(signal.SIGKILL) == (2 if stubborn else 0)
    assert set(statuses(tmp_path).values()) == {"waiting"}
    assert {event for event, _ in run_plan(tmp_path, plan, done).events} == {"started", "done"}


def test_finished_cells_are_not_touched_again(tmp_path):
    plan = smoke_plan(methods=("vq", "fsq"))
    run_plan(tmp_path, plan, done)
    assert run_plan(tmp_path, plan, lambda folder, place: pytest.fail("started again")).events == []


def test_a_full_disk_fails_the_cell_alone(tmp_path, monkeypatch):
    plan = smoke_plan(methods=("vq", "fsq"))

    def full(model, folder, **options):
        if model.config.quantizer == "vq":
            raise OSError(28, "No space left on device", str(folder))
        return original(model, folder, **options)

    from driftvq.models import VQVAE

    original = VQVAE.save_pretrained
    monkeypatch.setattr(VQVAE, "save_pretrained", full)
    run_plan(tmp_path, plan)
    cells = {cell.method: cell for cell in load_comparison(tmp_path).cells}
    assert (cells["vq"].status, cells["fsq"].status) == ("failed", "done")
    assert "No space left on device" in cells["vq"].error
