//! The next step with one node's MIG manager.

use gputenancy_crds::{
    DurationText, MigManagerRun, MigManagerStep, names,
    reasons::{self, Reason},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use super::{
    config::{base, is_ours, twin},
    types::{MigManagerDecision, MigManagerObservation, MigManagerState, MigManagerTimeouts},
    view::NodeContext,
};
use crate::event::EventMessage;

/// A MIG manager that does not answer is asked so often.
const ATTEMPTS: i32 = 2;

/// Decides what to do now about the MIG manager of one node.
pub fn step(seen: &MigManagerObservation<'_>) -> MigManagerDecision {
    let asking = Asking { seen, view: NodeContext::of(seen), decision: MigManagerDecision::default() };
    asking.step()
}

/// It was asked, and has not come to an end.
fn watches(step: MigManagerStep) -> bool {
    matches!(step, MigManagerStep::Asked | MigManagerStep::Working | MigManagerStep::Checking)
}

struct Asking<'a> {
    seen: &'a MigManagerObservation<'a>,
    view: NodeContext<'a>,
    decision: MigManagerDecision,
}

impl Asking<'_> {
    fn step(mut self) -> MigManagerDecision {
        let run = self.seen.node.spec.mig_manager.clone();
        let at_rest = !self.view.draining() && !self.view.acting();
        if at_rest {
            return self.rest(run);
        }
        let name = self.view.config().name();
        if !self.view.draining() && !self.view.needs(&name) {
            // asked for this and not finished yet: it may have parts paused, or other GPUs to carve
            let asked = |r: &MigManagerRun| r.step > MigManagerStep::Publishing && base(&r.config) == name;
            let busy = run.as_ref().is_some_and(asked);
            if !busy || self.view.state == Some("success") {
                self.unpause(false);
                return self.decision;
            }
        }
        match run {
            Some(run) if base(&run.config) == name => match run.step {
                MigManagerStep::Publishing => self.publish(run),
                MigManagerStep::GaveUp => self.given_up(run),
                _ => self.ask(run),
            },
            other => {
                let published = other.filter(|_| !self.view.draining()).map(|r| r.published);
                self.begin(name, published)
            }
        }
    }

    /// No change waits for it. It may be at work all the same: it carves what its label says whenever it starts, and may get stuck then.
    fn rest(mut self, run: Option<MigManagerRun>) -> MigManagerDecision {
        let ours = self.view.label.filter(|l| is_ours(l)).map(str::to_owned);
        let at_work = matches!(self.view.state, Some("pending" | "rebooting"));
        let paused = self.paused().next().is_some();
        match (run, ours.filter(|_| at_work)) {
            (Some(run), Some(label)) if watches(run.step) && base(&run.config) == base(&label) => return self.ask(run),
            // one that has given up stays so until the node is well again, and all runs that was paused
            (Some(run), _) if run.step == MigManagerStep::GaveUp => {
                self.unpause(true);
                self.decision.run = (paused || self.view.stuck()).then_some(run);
            }
            (_, Some(config)) if paused => {
                let run = self.run(config, MigManagerStep::Working, self.now());
                return self.working(run, "NVIDIA's MIG manager is at work");
            }
            // also where an old `pending` stays for ever: what it says is done or will fail, and the right name is read next
            (run, _) if self.view.misnamed() => return self.rename(run),
            _ => self.unpause(false),
        }
        self.decision
    }

    /// Begins to ask for the layout of this name. The one to go back to was published together with the one that failed.
    fn begin(self, name: String, published: Option<Time>) -> MigManagerDecision {
        let config = if self.view.label == Some(name.as_str()) { twin(&name) } else { name };
        let published = published.unwrap_or_else(|| self.now());
        let run = self.run(config, MigManagerStep::Publishing, published);
        self.publish(run)
    }

    fn run(&self, config: String, step: MigManagerStep, published: Time) -> MigManagerRun {
        let (since, timeout) = (self.now(), self.timeout());
        MigManagerRun { config, step, since, published, unanswered: 0, timeout, reason: String::new() }
    }

    /// The label gets the name of the layout that is there, as soon as the MIG manager can know it: it finds nothing to carve then, now
    /// and when it starts anew.
    fn rename(self, run: Option<MigManagerRun>) -> MigManagerDecision {
        let name = self.view.config().name();
        match run.filter(|r| base(&r.config) == name) {
            Some(run) if run.step == MigManagerStep::Publishing => self.publish(run),
            Some(run) if run.step == MigManagerStep::Asked => self.ask(run),
            _ => self.begin(name, None),
        }
    }

    fn publish(self, mut run: MigManagerRun) -> MigManagerDecision {
        if !self.seen.published.has(&run.config) {
            // the clock starts when it is there
            run.published = self.now();
            let words = format!("publishing layout {} for NVIDIA's MIG manager", run.config);
            return self.working(run, words);
        }
        if self.view.draining() {
            return self.working(run, "waiting until every GPU of the node that has to be carved is idle");
        }
        if !self.view.fresh {
            return self.working(run, "waiting for the agent to report");
        }
        if let Some(obstacle) = self.view.obstacle() {
            if self.view.acting_since().is_some_and(|since| self.over(&since, self.patience().answer)) {
                return self.give_up(
                    run,
                    reasons::IN_USE,
                    format!("NVIDIA's MIG manager could not be asked: {obstacle}"),
                );
            }
            return self.working(run, obstacle);
        }
        let known = self.view.label.is_some_and(|l| base(l) == base(&run.config));
        if !known && !self.over(&run.published, self.patience().config_sync) {
            let words = format!("waiting for layout {} to reach NVIDIA's MIG manager", run.config);
            return self.working(run, words);
        }
        self.enter(&mut run, MigManagerStep::Asked);
        let words = format!("asking NVIDIA's MIG manager for layout {}", run.config);
        self.working(run, words)
    }

    fn ask(mut self, mut run: MigManagerRun) -> MigManagerDecision {
        if self.view.label != Some(run.config.as_str()) {
            self.decision.label = Some(run.config.clone());
            let words = format!("setting label {} to {}", names::MIG_CONFIG_LABEL, run.config);
            return self.working(run, words);
        }
        let waited = self.over(&run.since, self.patience().notice);
        match (self.view.state, run.step) {
            (Some("pending" | "rebooting"), MigManagerStep::Asked) => self.enter(&mut run, MigManagerStep::Working),
            (Some("success"), MigManagerStep::Working) => self.enter(&mut run, MigManagerStep::Checking),
            (Some("success"), MigManagerStep::Checking) if waited && self.view.fresh => {
                let words = self.differs(&run);
                return self.give_up(run, reasons::LAYOUT_DIFFERS, words);
            }
            (Some("failed"), MigManagerStep::Asked) if !waited => {}
            // without having been at work: it may not know the layout yet
            (Some("failed"), MigManagerStep::Asked) if !self.over(&run.published, self.late()) => {
                return self.again(run, "its answer is failed, and the layout may not have reached it yet");
            }
            (Some("failed"), _) => {
                let words = self.failed(&run);
                return self.give_up(run, reasons::MIG_MANAGER_FAILED, words);
            }
            _ => {}
        }
        if self.over(&run.since, self.patience().answer) {
            run.unanswered += 1;
            if run.unanswered < ATTEMPTS {
                return self.again(run, "it did not come to an end in time");
            }
            let words = self.silent(&run);
            return self.give_up(run, reasons::MIG_MANAGER_SILENT, words);
        }
        let state = self.view.state.unwrap_or("no answer yet");
        let words = format!("NVIDIA's MIG manager is asked for layout {}: {state}", run.config);
        self.working(run, words)
    }

    /// Sets the layout's other name: the MIG manager acts only when the value changes.
    fn again(mut self, mut run: MigManagerRun, why: &str) -> MigManagerDecision {
        run.config = twin(&run.config);
        run.since = self.now();
        run.step = MigManagerStep::Asked;
        let words = format!("NVIDIA's MIG manager is asked again, now by the name {}, because {why}", run.config);
        self.event(reasons::MIG_MANAGER_ASKED_AGAIN, &words);
        self.working(run, words)
    }

    fn given_up(mut self, mut run: MigManagerRun) -> MigManagerDecision {
        if self.view.retried_since(run.since.0) {
            run.config = twin(&run.config);
            (run.unanswered, run.reason) = (0, String::new());
            self.enter(&mut run, MigManagerStep::Publishing);
            return self.publish(run);
        }
        self.unpause(true);
        self.decision.state =
            MigManagerState::Failed { reason: reasons::MIG_MANAGER_FAILED, message: run.reason.clone() };
        self.decision.run = Some(run);
        self.decision
    }

    fn give_up(mut self, mut run: MigManagerRun, name: Reason, words: String) -> MigManagerDecision {
        self.enter(&mut run, MigManagerStep::GaveUp);
        run.reason = words.chars().take(1000).collect();
        self.event(name, &words);
        self.decision.state = MigManagerState::Failed { reason: name, message: words };
        self.decision.run = Some(run);
        self.decision
    }

    fn working(mut self, run: MigManagerRun, words: impl Into<String>) -> MigManagerDecision {
        let MigManagerTimeouts { answer, config_sync, notice } = self.patience();
        let acting = self.view.acting_since();
        let ends = [(&run.since, answer), (&run.since, notice), (&run.published, config_sync)];
        let ends = ends.into_iter().chain(acting.iter().map(|since| (since, answer)));
        let ends = ends.filter_map(|(since, wait)| since.0.checked_add(wait).ok());
        self.decision.requeue_at = ends.filter(|at| *at > self.seen.now).min();
        self.decision.state = MigManagerState::InProgress(words.into());
        self.decision.run = Some(run);
        self.decision
    }

    /// What the MIG manager has left paused is started again: it never does so after it got stuck, nor always when it failed.
    fn unpause(&mut self, given_up: bool) {
        if !given_up && matches!(self.view.state, Some("pending" | "rebooting")) {
            return;
        }
        self.decision.unpause = self.paused().cloned().collect();
    }

    fn paused(&self) -> impl Iterator<Item = &String> {
        let paused = |(k, v): &(&String, &String)| k.starts_with(names::DEPLOY_LABELS) && *v == names::PAUSED;
        self.seen.labels.iter().filter(paused).map(|(k, _)| k)
    }

    fn enter(&self, run: &mut MigManagerRun, step: MigManagerStep) {
        (run.step, run.since, run.timeout) = (step, self.now(), self.timeout());
    }

    fn event(&mut self, reason: Reason, words: &str) {
        let message = format!("{}: {words}", self.node());
        self.decision.events.push(EventMessage { warning: true, reason, message });
    }

    fn over(&self, since: &Time, wait: SignedDuration) -> bool {
        since.0.checked_add(wait).is_ok_and(|at| at <= self.seen.now)
    }

    /// Until then a layout may be unknown to the MIG manager.
    fn late(&self) -> SignedDuration {
        self.patience().config_sync.max(SignedDuration::from_secs(90)) + SignedDuration::from_secs(60)
    }

    fn patience(&self) -> MigManagerTimeouts {
        self.seen.patience
    }

    /// How long an answer is waited for, as the journal keeps it.
    fn timeout(&self) -> Option<DurationText> {
        DurationText::parse(format!("{}s", self.patience().answer.as_secs())).ok()
    }

    /// Whole seconds, as the API server keeps them.
    fn now(&self) -> Time {
        Time(Timestamp::from_second(self.seen.now.as_second()).unwrap_or(self.seen.now))
    }

    fn node(&self) -> &str {
        self.seen.node.metadata.name.as_deref().unwrap_or("?")
    }

    fn failed(&self, run: &MigManagerRun) -> String {
        format!(
            "NVIDIA's MIG manager of node {} answered {}={} with {}=failed: read the log of its pod on this node",
            self.node(),
            names::MIG_CONFIG_LABEL,
            run.config,
            names::MIG_STATE_LABEL
        )
    }

    fn silent(&self, run: &MigManagerRun) -> String {
        let state = self.view.state.map_or_else(|| "is not there".to_owned(), |s| format!("stays {s}"));
        format!(
            "label {} of node {} {state} though {} was set {ATTEMPTS} times, last to {}: read the log of the nvidia-mig-manager pod on \
             this node and restart it; what it had paused runs again",
            names::MIG_STATE_LABEL,
            self.node(),
            names::MIG_CONFIG_LABEL,
            run.config
        )
    }

    fn differs(&self, run: &MigManagerRun) -> String {
        let differing = self.view.gpus.iter().filter(|g| g.wanted != g.shown);
        let shown: Vec<String> = differing
            .map(|g| format!("GPU {} has {} and not {}", g.state.index, g.shown.words(), g.wanted.words()))
            .collect();
        format!(
            "NVIDIA's MIG manager of node {} says success for {}, but NVML shows something else: {}",
            self.node(),
            run.config,
            shown.join(", ")
        )
    }
}
