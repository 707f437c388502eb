"""The mutation table: single lines of the hand-offs, what becomes of them, and the check that must fail.

`docs/device.md` shows it; `test_device_mutations` runs it.
"""

from __future__ import annotations

from device_mutants import Sabotage

WAITS, MEMORY = "waits.py", "memory.py"

SABOTAGES = [
    # publish
    Sabotage(
        "publish-without-drain",
        WAITS,
        "    fly.wait_vmcnt_zero()\n    gpu.barrier()\n    if",
        "    gpu.barrier()\n    if",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "publish-without-barrier",
        WAITS,
        "    gpu.barrier()\n    if fx",
        "    if fx",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "publish-barrier-before-drain",
        WAITS,
        "    fly.wait_vmcnt_zero()\n    gpu.barrier()\n    if",
        "    gpu.barrier()\n    fly.wait_vmcnt_zero()\n    if",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "publish-flag-before-data",
        WAITS,
        "    _mark()\n    fly.wait_vmcnt_zero()\n    gpu.barrier()\n",
        "    st(base, i, tag, cm)\n    fly.wait_vmcnt_zero()\n    gpu.barrier()\n",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "publish-flag-plain",
        WAITS,
        "        st(base, i, tag, cm)\n",
        "        st(base, i, tag, 0)\n",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "publish-flag-device-scope-only",
        WAITS,
        "        st(base, i, tag, cm)\n",
        "        st(base, i, tag, CM_DEV)\n",
        "flags_deliver_every_word_over_ranks",
    ),
    Sabotage(
        "publish-wrong-tag",
        WAITS,
        "        st(base, i, tag, cm)\n",
        "        st(base, i, tag + 1, cm)\n",
        "flags_deliver_every_word",
    ),
    # wait_flags
    Sabotage(
        "wait-flags-without-barrier",
        WAITS,
        "    _settle(failed, bound, site)\n    gpu.barrier()\n",
        "    _settle(failed, bound, site)\n",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "wait-flags-plain-load",
        WAITS,
        "opaque(thread * 4, rounds), 4, cm)",
        "opaque(thread * 4, rounds), 4, 0)",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "wait-flags-device-scope-only",
        WAITS,
        "opaque(thread * 4, rounds), 4, cm)",
        "opaque(thread * 4, rounds), 4, CM_DEV)",
        "flags_deliver_every_word_over_ranks",
    ),
    Sabotage(
        "wait-flags-any-tag",
        WAITS,
        "(words[0] != tag) & (thread < n)",
        "(words[0] == 0) & (thread < n)",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "wait-flags-later-tags-too",
        WAITS,
        "(words[0] != tag) & (thread < n)",
        "(words[0] < tag) & (thread < n)",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "wait-flags-one-short",
        WAITS,
        "(words[0] != tag) & (thread < n)",
        "(words[0] != tag) & (thread < n - 1)",
        "flags_deliver_every_word",
    ),
    Sabotage(
        "wait-flags-all-threads",
        WAITS,
        "(words[0] != tag) & (thread < n)",
        "words[0] != tag",
        "flags_deliver_every_word",
    ),
    # poll_pairs and poll_rows
    Sabotage(
        "poll-plain-load",
        WAITS,
        "load_words(region, start, 8 * n, cm)",
        "load_words(region, start, 8 * n, 0)",
        "pairs_deliver_every_word",
    ),
    Sabotage(
        "poll-device-scope-only",
        WAITS,
        "load_words(region, start, 8 * n, cm)",
        "load_words(region, start, 8 * n, CM_DEV)",
        "rows_deliver_every_word_over_ranks",
    ),
    Sabotage(
        "poll-any-tag",
        WAITS,
        "_any(word != tag for word in words[1::2])",
        "_any(word == 0 for word in words[1::2])",
        "pairs_deliver_every_word",
    ),
    Sabotage(
        "poll-first-tag-only",
        WAITS,
        "_any(word != tag for word in words[1::2])",
        "_any(word != tag for word in words[1:2])",
        "pairs_deliver_every_word",
    ),
    Sabotage(
        "poll-last-tag-only",
        WAITS,
        "_any(word != tag for word in words[1::2])",
        "_any(word != tag for word in words[-1:])",
        "rows_deliver_every_word_over_ranks",
    ),
    Sabotage(
        "poll-without-the-bytes",
        WAITS,
        "return late if wanted is None else late & wanted",
        "return late",
        "pairs_past_the_bytes_are_not_waited_for",
    ),
    Sabotage(
        "pair-in-two-stores",
        MEMORY,
        "        fly.buffer_store(part, where, idx * width + PIECE * piece, cm)\n",
        "        for k, word in reversed(list(enumerate(part if isinstance(part, fx.Vector) else [part]))):\n"
        "            fly.buffer_store(word, where, idx * width + PIECE * piece + 4 * k, cm)\n",
        "pairs_deliver_every_word",
    ),
    # the spin
    Sabotage(
        "spin-once",
        WAITS,
        "    while waiting:\n",
        "    if waiting:\n",
        "pairs_deliver_every_word",
    ),
    Sabotage(
        "spin-without-clock",
        WAITS,
        "late = clock() - dl >= 0",
        "late = dl < 0",
        "dead_producer_is_named_and_all_leave",
    ),
    Sabotage(
        "spin-clock-backwards",
        WAITS,
        "late = clock() - dl >= 0",
        "late = clock() - dl < 0",
        "slow_producer_just_in_time_passes",
    ),
    Sabotage(
        "spin-without-health",
        WAITS,
        "(record != 0).select(fx.Int32(ABANDONED), ",
        "(record == 2).select(fx.Int32(ABANDONED), ",
        "others_leave_when_one_rank_failed",
    ),
    Sabotage(
        "spin-health-plain-load",
        WAITS,
        "load_words(resource(health), fx.Int32(0), 4, CM_SYS)",
        "load_words(resource(health), fx.Int32(0), 4, 0)",
        "others_leave_when_one_rank_failed",
    ),
    Sabotage(
        "spin-health-device-scope-only",
        WAITS,
        "load_words(resource(health), fx.Int32(0), 4, CM_SYS)",
        "load_words(resource(health), fx.Int32(0), 4, CM_DEV)",
        "others_leave_when_one_rank_failed",
    ),
    Sabotage(
        "spin-lanes-leave-alone",
        WAITS,
        "        still = fly.ballot(pending(values)) != 0\n",
        "        still = pending(values)\n",
        "a_wave_fails_as_a_whole",
    ),
    Sabotage(
        "spin-heeds-lane-0-only",
        WAITS,
        "        still = fly.ballot(pending(values)) != 0\n",
        "        still = (fly.ballot(pending(values)) & 1) != 0\n",
        "a_sum_over_lanes_after_the_wait_is_whole",
    ),
    Sabotage(
        "spin-never-done",
        WAITS,
        "failed = still.select(verdict, fx.Int32(DONE))",
        "failed = verdict",
        "spin_looks_before_it_loads_and_only_now_and_then",
    ),
    Sabotage(
        "spin-looks-every-round",
        WAITS,
        "if rounds % CHECK_EVERY == 0:",
        "if rounds % 1 == 0:",
        "spin_looks_before_it_loads_and_only_now_and_then",
    ),
    Sabotage(
        "spin-looks-too-seldom",
        WAITS,
        "if rounds % CHECK_EVERY == 0:",
        "if rounds % (8 * CHECK_EVERY) == 0:",
        "spin_looks_before_it_loads_and_only_now_and_then",
    ),
    Sabotage(
        "spin-goes-on-after-the-verdict",
        WAITS,
        "        waiting = still & (verdict == DONE)\n",
        "        waiting = still\n",
        "dead_producer_is_named_and_all_leave",
    ),
    # fail
    Sabotage(
        "fail-not-reported",
        WAITS,
        "    if failed == EXPIRED:\n",
        "    if failed == ABANDONED:\n",
        "dead_producer_is_named_and_all_leave",
    ),
    Sabotage(
        "fail-overwrites",
        WAITS,
        "    fx.atomic_cas(pointer, fx.Int64(0), word)\n",
        "    fx.generic_store(pointer, word)\n",
        "first_record_is_kept",
    ),
    Sabotage(
        "fail-in-two-halves",
        WAITS,
        "    fx.atomic_cas(pointer, fx.Int64(0), word)\n",
        "    st(health, 0, fx.Int32(word), CM_SYS)\n    st(health, 1, fx.Int32(word >> 32), CM_SYS)\n",
        "record_is_whole",
    ),
    Sabotage(
        "fail-without-rank",
        WAITS,
        "(fx.Int64(rank) << 16) | 1",
        "fx.Int64(1)",
        "dead_rank_is_named_by_the_first_that_waited",
    ),
]
