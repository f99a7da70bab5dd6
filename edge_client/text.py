"""The statement's facts as text for a terminal, and the sentences that terminal and page share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge_client.explain import every
from edge_client.language import message, number, say, say_count
from edge_client.settings import USERS_FILE
from edge_client.statement import Facts
from protocol_spec.programs.cli import typed
from protocol_spec.programs.output import quoted

WIDTH: Final = 96
MOST_ROUNDS: Final = 8
LABELS: Final = (
    *(message("Campaign"), message("Purpose"), message("Asked by"), message("Rounds")),
    *(message("Ends"), message("Digest"), message("Signed by"), message("Status")),
    *(message("Sent to"), message("Topic")),
)
OF_QUESTION: Final = (message("Answers"), message("Odds"), message("Bytes"))


# --- sentences that the page has too -------------------------------------------------------------


def none_joined() -> str:
    command = typed("allomfree-edge", "join", "ADDRESS")
    return say("No campaign joined. Begin with: {command}", command=command)


def booked_text(line: Facts) -> str:
    return f"{line['campaign'] or say('unknown')}, {say(line['reason'])}"


def rounds_text(facts: Facts) -> str:
    return say(
        "{count}, one {every}, from {first}",
        count=facts["rounds"],
        every=every(facts["period_seconds"]),
        first=facts["first_round"],
    )


def and_more(text: str, of: Sequence[object], most: int) -> str:
    """A list that was cut after `most`, with the count of the rest."""
    if len(of) <= most:
        return text
    return say("{shown} and {count} more", shown=text, count=len(of) - most)


def total_text(facts: Facts) -> str:
    """The most that can ever be booked, as a sentence."""
    return say("The total cost is {bound}.", bound=facts["bound"])


def shifts_text(facts: Facts) -> str:
    """The bounds of local differential privacy for a question, as odds."""
    return say(
        "One report multiplies anyone's odds about you {one}, all together {every}.",
        one=facts["belief_one_report"],
        every=facts["belief_all_reports"],
    )


def trial_text() -> str:
    return say(
        "This is a trial: this device answers with a value that it makes up at random. None of "
        "your values is read, and nothing is charged."
    )


def reports_text(count: int) -> str:
    return say_count(count, "{count} report", "{count} reports")


def memos_text(count: int) -> str:
    return say_count(count, "{count} memo", "{count} memos")


def budget_text(budgets: Sequence[Facts]) -> str:
    """How much of the owner's limits is used up or promised."""
    each = [
        say(
            "{source} {used} of {allowed}",
            source=say("all sources together") if b["source"] == "*" else b["source"],
            used=number(b["used"]),
            allowed=say("no limit") if b["allowed"] is None else number(b["allowed"]),
        )
        for b in budgets
    ]
    return say("Used or promised, of what your policy allows: {budgets}.", budgets=", ".join(each))


# --- before agreeing -----------------------------------------------------------------------------


def asked_text(facts: Facts, config: Path | None) -> str:
    """The invitation, then the sources that cannot be read, if there are any."""
    missing = facts["sources"]
    more = [sources_text(missing, config)] if missing else []
    return "\n\n".join([invitation_text(facts), *more])


def invitation_text(facts: Facts) -> str:
    answers = facts["answers"]
    if len(facts["attributes"]) == 1:
        agreeing = say(
            "If you agree, this device answers this question, {answers}, with noise added here:",
            answers=answers,
        )
    else:
        agreeing = say(
            "If you agree, this device draws one of these questions at random and answers only "
            "that one, {answers}, with noise added here:",
            answers=answers,
        )
    trial = ["", *_wrap(trial_text())] if facts["trial"] else []
    lines = [*_about_lines(facts), *_trust_lines(facts), *trial, "", *_wrap(agreeing)]
    for attribute in facts["attributes"]:
        lines += ["", *_attribute_lines(attribute)]
    lines += [
        "",
        say("It would go to {broker} on the topic", broker=facts["broker"]),
        f"    {facts['topic']}",
        *_credentials_lines(facts),
        *labels_lines(facts),
        *_limits_lines(facts, facts["attributes"]),
        *_wrap(total_text(facts)),
        say("You can `pause`, `leave` or `forget` at any time."),
    ]
    return "\n".join(lines)


def _trust_lines(facts: Facts) -> list[str]:
    """Which manifest it is exactly, and who vouches for it."""
    lines = [f"{_label('Digest')}{facts['digest']}"]
    if not facts["whole_digest"]:
        compare = say(
            "Your invitation names only the first 8 of these digits, and others can make a "
            "campaign with the same 8: compare all of them with those that the operator published."
        )
        lines += _wrap(compare, " " * len(_label("Digest")))
    key, name = facts["operator"], facts["operator_name"]
    if not key:
        signer = say("nobody: it could be from anyone who can write to the broker.")
    elif not facts["operator_verified"]:
        signer = say(
            "{key}, it says, but that was not checked: the Python package cryptography is missing "
            "here. Install it: pip install cryptography",
            key=key,
        )
    elif name is None:
        signer = say("{key}, verified. You do not list this operator in policy.operators.", key=key)
    else:
        signer = say("{name}, verified", name=key if name == key else f"{name} ({key})")
    return [*lines, *_wrap(signer, _label("Signed by"))]


def _credentials_lines(facts: Facts) -> list[str]:
    if facts["credentials"] == "none":
        return []
    if facts["credentials"] == "shown":
        return _wrap(say("That broker is shown your user name and password, or your certificate."))
    return _wrap(
        say(
            "Your user name, password and certificate are for another broker (credentials_for): "
            "they are not shown to this one, and this device takes part under a random name."
        )
    )


def labels_text(facts: Facts) -> str:
    """The public labels that the operator gave this device; empty if there are none."""
    labels = ", ".join(f"{name} = {value}" for name, value in facts["labels"].items())
    told = [
        say(message("Public labels that the operator gave this device: {labels}."), labels=labels)
    ]
    if facts["groups"]:
        sentence = message(
            "Results are published by {label}; this device is counted under {group}."
        )
        told.append(say(sentence, **facts["groups"]))
    return " ".join(told if labels else told[1:])


def labels_lines(facts: Facts) -> list[str]:
    return _wrap(labels_text(facts)) if facts["labels"] or facts["groups"] else []


def sources_text(sources: Sequence[Facts], config: Path | None) -> str:
    """Each with what is wrong, and the lines to add. No value is in it, nor does any change it."""
    lines = [
        say_count(
            len(sources),
            "Not ready: one of these questions has no source that can be read on this device.",
            "Not ready: {count} of these questions have no source that can be read on this device.",
        ),
        *(f"  {each['attribute']}: {each['problem']}" for each in sources),
    ]
    to_add = [each["lines"] for each in sources if each["lines"]]
    if to_add:
        file = config or USERS_FILE
        lines += [say("Add to {file}, and write your own:", file=file), "", "\n\n".join(to_add), ""]
    why = say(
        "Add it before the first round: without it this device answers as one whose value is none "
        "of the others, and that answer may be kept for life."
    )
    return "\n".join([*lines, *_wrap(why)])


def joined_text(facts: Facts) -> str:
    joined = say(
        "Joined {campaign}. This device will answer {attribute}, for life.",
        campaign=facts["campaign"],
        attribute=quoted(facts["attribute"]),
    )
    warning = _wrap(facts["warning"]) if facts["warning"] else []
    trial = _wrap(trial_text()) if facts["trial"] else []
    return "\n".join(["", joined, *trial, *_rounds_lines(facts["rounds"]), *warning])


# --- show and status -----------------------------------------------------------------------------


def show_text(facts: Facts) -> str:
    campaigns = [campaign_text(campaign) for campaign in facts["campaigns"]] or [none_joined()]
    ledger = "\n".join([ledger_text(facts["ledger"]), *_wrap(budget_text(facts["budgets"]))])
    clock = [say("Clock: {doubt}.", doubt=facts["clock"])] if facts["clock"] else []
    return "\n\n\n".join([*campaigns, ledger, *clock])


def campaign_text(facts: Facts) -> str:
    queued = _report_lines(facts["queued"]) or [f"    {say('nothing')}"]
    left = _report_lines(facts["sent"]) or [f"    {say('nothing')}"]
    stop = typed("allomfree-edge", "leave", facts["campaign"])
    lines = [
        *_about_lines(facts),
        f"{_label('Status')}{say(facts['status'])}: {facts['state']}",
        *(["", *_wrap(trial_text())] if facts["trial"] else []),
        "",
        say("This device drew one question for life:"),
        *_attribute_lines(facts["drawn_attribute"]),
        *_wrap(f"    {say('It answers {answers}.', answers=facts['answers'])}"),
        *_rounds_lines(facts["drawn_rounds"]),
        "",
        f"{_label('Sent to')}{facts['broker']}",
        f"{_label('Topic')}{facts['topic']}",
        *labels_lines(facts),
        *("", say("Queued:"), *queued),
        *("", say("Left this device:"), *left),
        "",
        *_limits_lines(facts, [facts["drawn_attribute"]]),
        "",
        *_spent_lines(facts),
        say("Stop with: {command}", command=stop),
        say("(`pause` stops for a while; `forget` wipes the memory too)"),
    ]
    return "\n".join(lines)


def _report_lines(rows: list[Facts]) -> list[str]:
    lines = []
    for row in rows[-5:]:
        answer = say(
            "round {round}: {fate}; the noisy answer says: {says}",
            round=row["round"],
            fate=say(row["fate"]),
            says=", ".join(row["says"][:6]) or say("nothing"),
        )
        lines += [f"    {answer}", f"        {row['bytes']}"]
    return lines


def _spent_lines(facts: Facts) -> list[str]:
    ever = _wrap(total_text(facts))
    if not facts["reports"]:
        first = say(
            "Ledger: nothing was drawn yet; the first report books epsilon {epsilon}.",
            epsilon=number(facts["charge"]),
        )
        return [first, *ever]
    reports = reports_text(facts["reports"])
    revealed = say(
        "Ledger: {drawn}. Revealed so far at most epsilon {exact};",
        drawn=f"{memos_text(facts['memos'])}, {reports}" if facts["memos"] else reports,
        exact=number(facts["epsilon_exact"], ".4f"),
    )
    booked = number(facts["epsilon_charged"])
    if facts["memos"]:
        why = say("booked {booked}, the most that any number of them can reveal.", booked=booked)
    else:
        each = number(facts["charge"])
        why = say("booked {booked}, {each} for each of them.", booked=booked, each=each)
    return [revealed, why, *ever]


def ledger_text(lines: list[Facts]) -> str:
    if not lines:
        return say("Ledger: nothing was ever charged.")
    sources = [say("all sources") if each["source"] == "*" else each["source"] for each in lines]
    source = say("source")
    wide = max(len(source), *map(len, sources))
    rows = [
        f"{line['at']}  {number(line['epsilon'], '8.4f')}  {name:<{wide}}  {booked_text(line)}"
        for line, name in zip(lines, sources, strict=True)
    ]
    columns = (say("when"), say("epsilon"), say("campaign, reason"))
    return "\n".join([f"{columns[0]:<20}  {columns[1]:>8}  {source:<{wide}}  {columns[2]}", *rows])


def status_text(facts: Facts) -> str:
    start = typed("allomfree-edge", "run")
    idle = "" if facts["pid"] else f" (`{start}` starts it; `report` needs none)"
    campaigns = [
        f"{c['campaign']}: {'joined, ' if c['status'] == 'joined' else ''}{c['state']}; "
        f"attribute {c['attribute']}, "
        f"{reports_text(c['reports'])}, {c['queued']} queued, "
        f"epsilon {c['epsilon_exact']:.4f} of {c['epsilon_charged']:g}, "
        f"at most {c['epsilon_bound']:g} ever"
        for c in facts["campaigns"]
    ]
    return "\n".join([f"agent: {facts['agent']}{idle}", *(campaigns or [none_joined()])])


# --- parts of both -------------------------------------------------------------------------------


def _about_lines(facts: Facts) -> list[str]:
    return [
        facts["title"],
        "=" * len(facts["title"]),
        f"{_label('Campaign')}{facts['campaign']}",
        *_wrap(facts["purpose"], _label("Purpose")),
        f"{_label('Asked by')}{facts['owner']}, {facts['contact']}",
        f"{_label('Rounds')}{rounds_text(facts)}",
        f"{_label('Ends')}{facts['ends']}",
    ]


def together_text(facts: Facts) -> str:
    first, second = facts["together"]
    return say(
        "Your {first} and your {second}, together, as one answer.",
        first=quoted(first),
        second=quoted(second),
    )


def _attribute_lines(facts: Facts) -> list[str]:
    values = ", ".join(facts["values"][:8]) + (", ..." if len(facts["values"]) > 8 else "")
    octets = facts["bytes"] if facts["length"] <= 40 else facts["bytes"][:90] + " ..."
    wide = max(10, *(len(say(label)) + 1 for label in OF_QUESTION))
    answers, odds, name = (f"    {say(label):<{wide}}" for label in OF_QUESTION)
    blank = " " * len(odds)
    size, protocol = facts["length"], facts["protocol"]
    together = [f"    {together_text(facts)}"] if facts["together"] else []
    return [
        f"  {facts['attribute']}: {facts['question']}",
        *together,
        f"{answers}{len(facts['values'])}: {values}",
        *_wrap(facts["one_report"], odds),
        *_wrap(facts["all_reports"], blank),
        *_wrap(shifts_text(facts), blank),
        f"{name}{octets}",
        blank + say("{count} bytes, {protocol}; ?? is noise", count=size, protocol=protocol),
        *(_wrap(facts["warning"], " " * 4) if facts["warning"] else []),
    ]


def _rounds_lines(rounds: list[Facts] | None) -> list[str]:
    """The rounds drawn, where a device does not answer in all of them."""
    if rounds is None:
        return []
    if not rounds:
        return _wrap(f"    {say('No round is left for it to answer.')}")
    first = ", ".join(f"{r['round']} ({r['opens'][:16]}Z)" for r in rounds[:MOST_ROUNDS])
    return _wrap(
        f"    {say('Rounds drawn: {rounds}.', rounds=and_more(first, rounds, MOST_ROUNDS))}"
    )


def _limits_lines(facts: Facts, attributes: list[Facts]) -> list[str]:
    """What is not sent, what is seen all the same, and what noise does not hide."""
    not_hidden = dict.fromkeys(text for each in attributes for text in each["not_hidden"])
    return [
        *_wrap(say("Never sent: {list}.", list=say("; ").join(facts["never_leaves"]))),
        *_wrap(say("The broker sees: {list}.", list=say("; ").join(facts["broker_sees"]))),
        *(line for text in not_hidden for line in _wrap(text)),
    ]


def _label(name: str) -> str:
    """A line's name, as wide as the widest of them."""
    return say(name).ljust(max(12, *(len(say(label)) + 1 for label in LABELS)))


def _wrap(text: str, label: str = "") -> list[str]:
    """Lines of at most WIDTH columns, indented below their label."""
    indent = " " * len(label)
    return textwrap.wrap(text, WIDTH, initial_indent=label, subsequent_indent=indent) or [label]
