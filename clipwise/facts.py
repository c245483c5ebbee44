"""What a run says of itself, from its plan alone: public facts for its ledger, and words for its statement."""

from __future__ import annotations

import dataclasses
from typing import Any

from clipwise import __version__
from clipwise.plans import Plan


def public_facts(plan: Plan) -> dict[str, Any]:
    """What a ledger says of the run that it belongs to."""
    return {
        "method": plan.method.name,
        "method_options": dataclasses.asdict(plan.method),
        "sampling": plan.sampling,
        "sample_rate": plan.sample_rate,
        "expected_batch_size": plan.expected_batch_size,
        "sound": plan.method.sound,
        "noise_multiplier": plan.noise_multiplier,
        "schedule": str(plan.schedule),
        "steps": plan.steps,
        "target_epsilon": plan.target_epsilon if plan.private else None,
        "delta": plan.delta,
        "neighbours": plan.neighbours,
        **({} if plan.counted is None else {"counted": counted(plan)}),
        "clipwise": __version__,
    }


def planned_releases(plan: Plan) -> int | None:
    """Steps and releases that the ledger will hold, all phases together; None of a run that is open-ended."""
    if plan.steps is None:
        return None
    others = sum(event.count for event in (*plan.prepared, *plan.before, *plan.after))
    return plan.steps + others + (plan.counted is not None)


def counted(plan: Plan) -> dict[str, Any] | None:
    """Of a private number of records: what was released of it, and the noise that is in it."""
    count = plan.counted
    return None if count is None else {"records": count.records, "noise_multiplier": count.event.noise_multiplier}


def noise_path(plan: Plan, steps_taken: int) -> str:
    """The schedule in words: its text, and the noise of the first and the last step."""
    last = (plan.steps or max(1, steps_taken)) - 1
    first, final = plan.total(0), plan.total(last)
    if plan.schedule.kind == "constant" and first == final:
        return "constant"
    return f"{plan.schedule}, from {first:.6g} to {final:.6g} at step {last}"


def cost_of_groups(plan: Plan) -> list[str]:
    """What a method that treats groups apart does with the labels; nothing for any other."""
    if not plan.method.needs_groups:
        return []
    sides = "; ".join(
        f"{s.name}, {s.width} numbers, noise multiplier {s.noise_multiplier:g} at l2 bound {s.l2_bound:g}"
        for s in plan.side_queries
    )
    return [
        f"group labels: {plan.method.name} reads the group of each record. A record's label is part of the record, "
        f"and protected with it. What is released about groups at every step ({sides}) is part of the step's noise and "
        "of the epsilon above. The number of groups and their names are treated as public."
    ]
