//! Shares that programs use next to each other: idle time, and suspension.

use std::{process::Child, thread::sleep, time::Duration};

use crate::support::{GIB, Node, Share, arbitrating::arbitrating};
use gputenancy_ledger::{Pace, Turn, now};

const PERIOD: u64 = 20_000_000;

fn paced(node: &Node, name: &str, start: u64, percent: u64, burst: bool) -> Share {
    let share = node.share(name, 4 * GIB);
    let turn = Turn { period: PERIOD, start: start * PERIOD / 100, length: percent * PERIOD / 100 };
    share.limits.set_pace(Some(Pace { percent, turn: Some(turn), burst }));
    share
}

/// Part of the time for which a program's kernels of a millisecond ran, in percent.
fn part(node: &Node, share: &Share) -> f64 {
    let arguments = ["launch", "--iteration", "1", "--micros", "1000", "--millis", "3000"];
    percent(node.program(&share.folder, &arguments).spawn().unwrap())
}

fn percent(program: Child) -> f64 {
    let output = program.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split("percent=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    number.parse().unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn busy_program_uses_what_an_idle_neighbour_leaves_if_its_share_may_burst() {
    let node = Node::new();
    for (burst, expected) in [(false, 0.0..=22.0), (true, 50.0..=101.0)] {
        let name = format!("burst-{burst}");
        let shares = [paced(&node, &name, 0, 20, burst), paced(&node, &format!("{name}-idle"), 20, 80, true)];
        // on an idle machine 20 and 100; how much less than its part a program reaches depends on the machine
        let got = arbitrating(&shares, || part(&node, &shares[0]));
        assert!(expected.contains(&got), "burst {burst}: {got}");
    }
}

#[test]
fn suspended_share_launches_nothing_keeps_its_memory_and_goes_on() {
    let node = Node::new();
    for pace in [None, Some(Pace { percent: 50, turn: None, burst: false })] {
        let share = node.share(if pace.is_some() { "paced" } else { "unlimited" }, 4 * GIB);
        share.limits.set_pace(pace);
        share.limits.set_suspended(true);
        let arguments = ["launch", "--iteration", "1", "--micros", "1000", "--millis", "200", "--mode", "each"];
        let mut program = node.program(&share.folder, &arguments).spawn().unwrap();
        while share.usage.used() == 0 {
            sleep(Duration::from_millis(10));
        }
        let (held, begin) = (share.usage.used(), now());
        // five times as long as the program takes, and it has not come to its end
        sleep(Duration::from_secs(1));
        assert!(program.try_wait().unwrap().is_none(), "it waits");
        // it may have allocated after its context
        assert!(share.usage.used() >= held && share.usage.paid() == 0, "{} of {held}", share.usage.used());
        share.limits.set_suspended(false);
        assert!(percent(program) > 0.0);
        if pace.is_some() {
            assert!(share.usage.paid() > begin, "it launched later");
        }
    }
}

#[test]
fn wait_of_a_launch_for_its_part_of_the_time_is_summed() {
    let node = Node::new();
    let share = node.share("share", 4 * GIB);
    share.limits.set_pace(Some(Pace { percent: 10, turn: None, burst: false }));
    let begin = now();
    part(&node, &share);
    let (delayed, passed) = (share.usage.delayed(), now() - begin);
    assert!(delayed > passed / 4 && delayed <= passed, "{delayed} of {passed}");
}
