"""Walks that have found a fault once, and are walked again in each run."""

from __future__ import annotations

from tests.property.flow_walk import Walk

DEADLINE_SKIPS_THE_CURRENT_STAGE: Walk = (
    [
        (
            1_099_511_627_776,
            [
                (90, []),
                (65728, [1253146, 27_190_060_045, 288377, 2405, 1001]),
                (2232, [431349, 369014]),
                (553, [4710, 74470, 39912, 168_997_149_255, 436]),
            ],
        ),
        (
            6_227_020_799,
            [
                (72362599, [558742, 103761, 3984, 822]),
                (3311, [17_179_869_183, 24138, 362, 14_522_282_642, 3423405]),
                (405, []),
                (1358846, [223, 1_099_511_627_776, 5380, 23376, 247_502_731_926]),
            ],
        ),
    ],
    [
        [("nothing", 74)],
        [("nothing", 2442)],
        [("nothing", 0)],
        [("jump", 1023025)],
        [("skip_stage", 4098), ("resume_flow", 2663)],
        [("release", 1626974)],
        [("open_flow", 721)],
        [("pause", 87_178_291_201)],
        [("release", 30)],
        [("nothing", 9376300), ("seal_flow", 2241)],
        [("nothing", 413)],
        [("append_context", 2856)],
        [("seal_stage", 38)],
        [("resume", 929)],
        [("succeed", 1_000_000_000)],
        [("pause_flow", 0)],
        [("nothing", 41)],
        [("succeed", 66639756)],
        [("nothing", 0)],
        [("nothing", 101)],
        [("resume_flow", 12_793_972_535)],
        [("nothing", 0)],
        [("claim", 757_496_451_219), ("wait_stage", 1796227), ("jump", 180), ("start", 11912)],
        [("succeed", 419660)],
        [("claim", 107755), ("add_stage", 14372), ("add_tasks", 3890028), ("seal_stage", 17209)],
        [("fail", 226), ("jump", 2666), ("add_tasks", 20055), ("succeed", 4122423)],
        [("jump", 1000000)],
        [("jump", 144_766_788_628)],
        [("seal_stage", 239144), ("claim", 597)],
        [("succeed", 4034)],
        [("skip_stage", 49073869)],
        [("succeed", 249), ("succeed", 7302674), ("claim", 9_228_519_258), ("fail", 10223131), ("jump", 194)],
        [("start", 232957), ("jump", 16_403_459_788), ("release", 442), ("sweep", 75262724), ("cancel", 23636710)],
        [("jump", 162928960)],
        [("cancel_flow", 329)],
        [("skip_stage", 239), ("retry_flow", 620), ("pause", 8024), ("fail", 269_675_181_468)],
        [("claim", 628), ("claim", 506), ("set_priority", 93387240), ("sweep", 2115368), ("skip_stage", 831)],
        [("open_flow", 234931)],
        [("redrive", 23822), ("fail", 3715), ("succeed", 467)],
    ],
)
"""With small steps, the deadline of a flow skips its current stage in a transaction before it ends the others."""
