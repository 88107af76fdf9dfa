//! The next step of the request to one node's MIG manager.

use gputenancy_crds::{
    DurationText, MigManagerRun, MigManagerStep, names,
    reasons::{self, Reason},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::SignedDuration};

use super::{
    config::{base, is_ours, twin},
    types::{RequestDecision, RequestObservation, RequestState, RequestTimeouts},
    view::NodeContext,
};
use crate::{duration::stamp, event::EventMessage};

/// Attempts of a request without a response.
const ATTEMPTS: i32 = 2;

/// Decides what to do now about the MIG manager of one node.
pub fn step(observation: &RequestObservation<'_>) -> RequestDecision {
    let node = NodeContext::of(observation);
    Request { observation, node, decision: RequestDecision::default() }.step()
}

struct Request<'a> {
    observation: &'a RequestObservation<'a>,
    node: NodeContext<'a>,
    decision: RequestDecision,
}

impl Request<'_> {
    fn step(mut self) -> RequestDecision {
        let run = self.observation.node.spec.mig_manager.clone();
        if !self.node.draining() && !self.node.acting() {
            return self.idle(run);
        }
        let name = self.node.config().name();
        if !self.node.draining() && !self.node.needs(&name) {
            // an unfinished request may have components paused, or other GPUs to partition
            let requested = |r: &MigManagerRun| r.step > MigManagerStep::Publishing && base(&r.config) == name;
            if !run.as_ref().is_some_and(requested) || self.node.state == Some("success") {
                self.unpause(false);
                return self.decision;
            }
        }
        match run {
            Some(run) if base(&run.config) == name => match run.step {
                MigManagerStep::Publishing => self.publish(run),
                MigManagerStep::GaveUp => self.failed(run),
                _ => self.request(run),
            },
            other => {
                let published = other.filter(|_| !self.node.draining()).map(|r| r.published);
                self.begin(name, published)
            }
        }
    }

    /// No change waits for the MIG manager. It may be partitioning all the same, and get stuck: it applies its label whenever it starts.
    fn idle(mut self, run: Option<MigManagerRun>) -> RequestDecision {
        let ours = self.node.label.filter(|l| is_ours(l) && self.node.busy()).map(str::to_owned);
        let paused = self.paused().next().is_some();
        let requested = [MigManagerStep::Asked, MigManagerStep::Working, MigManagerStep::Checking];
        match (run, ours) {
            (Some(run), Some(label)) if requested.contains(&run.step) && base(&run.config) == base(&label) => {
                return self.request(run);
            }
            // a failed request is kept until the node has recovered and all paused components run
            (Some(run), _) if run.step == MigManagerStep::GaveUp => {
                self.unpause(true);
                self.decision.run = (paused || self.node.stuck()).then_some(run);
            }
            (_, Some(config)) if paused => {
                let run = self.run(config, MigManagerStep::Working, self.now());
                return self.wait(run, "NVIDIA's MIG manager is partitioning");
            }
            // also with an old `pending` that stays for ever: it refers to a request that is done or will fail
            (run, _) if self.node.misnamed() => return self.rename(run),
            _ => self.unpause(false),
        }
        self.decision
    }

    /// Begins to request the layout of this name. The layout to roll back to was published together with the one that failed.
    fn begin(self, name: String, published: Option<Time>) -> RequestDecision {
        let config = if self.node.label == Some(name.as_str()) { twin(&name) } else { name };
        let published = published.unwrap_or_else(|| self.now());
        let run = self.run(config, MigManagerStep::Publishing, published);
        self.publish(run)
    }

    fn run(&self, config: String, step: MigManagerStep, published: Time) -> MigManagerRun {
        let (since, timeout) = (self.now(), self.timeout());
        MigManagerRun { config, step, since, published, unanswered: 0, timeout, reason: String::new() }
    }

    /// Sets the label to the name of the present layout, so that the MIG manager has nothing to do, now and when it restarts.
    fn rename(self, run: Option<MigManagerRun>) -> RequestDecision {
        let name = self.node.config().name();
        match run.filter(|r| base(&r.config) == name) {
            Some(run) if run.step == MigManagerStep::Publishing => self.publish(run),
            Some(run) if run.step == MigManagerStep::Asked => self.request(run),
            _ => self.begin(name, None),
        }
    }

    fn publish(self, mut run: MigManagerRun) -> RequestDecision {
        let timeouts = self.observation.patience;
        if !self.observation.published.has(&run.config) {
            // the time to sync counts from the publication
            run.published = self.now();
            let message = format!("publishing layout {} for NVIDIA's MIG manager", run.config);
            return self.wait(run, message);
        }
        if self.node.draining() {
            return self.wait(run, "waiting until every GPU of the node that is repartitioned is idle");
        }
        if !self.node.fresh {
            return self.wait(run, "waiting for the agent to report");
        }
        if let Some(obstacle) = self.node.obstacle() {
            if self.node.acting_since().is_some_and(|since| self.is_over(&since, timeouts.answer)) {
                return self.fail(
                    run,
                    reasons::IN_USE,
                    format!("no request to NVIDIA's MIG manager was possible: {obstacle}"),
                );
            }
            return self.wait(run, obstacle);
        }
        let known = self.node.label.is_some_and(|l| base(l) == base(&run.config));
        if !known && !self.is_over(&run.published, timeouts.config_sync) {
            let message = format!("waiting for kubelet to sync layout {} to NVIDIA's MIG manager", run.config);
            return self.wait(run, message);
        }
        self.enter(&mut run, MigManagerStep::Asked);
        let message = format!("requesting layout {} from NVIDIA's MIG manager", run.config);
        self.wait(run, message)
    }

    fn request(mut self, mut run: MigManagerRun) -> RequestDecision {
        let timeouts = self.observation.patience;
        if self.node.label != Some(run.config.as_str()) {
            self.decision.label = Some(run.config.clone());
            let message = format!("setting label {} to {}", names::MIG_CONFIG_LABEL, run.config);
            return self.wait(run, message);
        }
        let current = self.is_over(&run.since, timeouts.notice);
        // until then the layout may be unknown to the MIG manager
        let synced = timeouts.config_sync.max(SignedDuration::from_secs(90)) + SignedDuration::from_secs(60);
        match (self.node.state, run.step) {
            (_, MigManagerStep::Asked) if self.node.busy() => self.enter(&mut run, MigManagerStep::Working),
            (Some("success"), MigManagerStep::Working) => self.enter(&mut run, MigManagerStep::Checking),
            (Some("success"), MigManagerStep::Checking) if current && self.node.fresh => {
                let message = self.differing(&run);
                return self.fail(run, reasons::LAYOUT_DIFFERS, message);
            }
            (Some("failed"), MigManagerStep::Asked) if !current => {}
            // failed at once: it may not know the layout yet
            (Some("failed"), MigManagerStep::Asked) if !self.is_over(&run.published, synced) => {
                return self.repeat(run, "it reports failed, and may not have read the layout yet");
            }
            (Some("failed"), _) => {
                let message = self.reported_failure(&run);
                return self.fail(run, reasons::MIG_MANAGER_FAILED, message);
            }
            _ => {}
        }
        if self.is_over(&run.since, timeouts.answer) {
            run.unanswered += 1;
            if run.unanswered < ATTEMPTS {
                return self.repeat(run, "it has not finished in time");
            }
            let message = self.silent(&run);
            return self.fail(run, reasons::MIG_MANAGER_TIMEOUT, message);
        }
        let state = self.node.state.unwrap_or("no response yet");
        let message = format!("layout {} is requested from NVIDIA's MIG manager: {state}", run.config);
        self.wait(run, message)
    }

    /// Sets the layout's other name: the MIG manager acts only when the value changes.
    fn repeat(mut self, mut run: MigManagerRun, why: &str) -> RequestDecision {
        run.config = twin(&run.config);
        run.since = self.now();
        run.step = MigManagerStep::Asked;
        let message = format!("repeating the request to NVIDIA's MIG manager under the name {}: {why}", run.config);
        self.event(reasons::MIG_MANAGER_REQUEST_REPEATED, &message);
        self.wait(run, message)
    }

    /// The request has failed; it is repeated once a change is retried.
    fn failed(mut self, mut run: MigManagerRun) -> RequestDecision {
        if self.node.retried_since(run.since.0) {
            run.config = twin(&run.config);
            (run.unanswered, run.reason) = (0, String::new());
            self.enter(&mut run, MigManagerStep::Publishing);
            return self.publish(run);
        }
        self.unpause(true);
        self.decision.state = RequestState::Failed { reason: reasons::MIG_MANAGER_FAILED, message: run.reason.clone() };
        self.decision.run = Some(run);
        self.decision
    }

    fn fail(mut self, mut run: MigManagerRun, reason: Reason, message: String) -> RequestDecision {
        self.enter(&mut run, MigManagerStep::GaveUp);
        run.reason = message.chars().take(1000).collect();
        self.event(reason, &message);
        self.decision.state = RequestState::Failed { reason, message };
        self.decision.run = Some(run);
        self.decision
    }

    fn wait(mut self, run: MigManagerRun, message: impl Into<String>) -> RequestDecision {
        let RequestTimeouts { answer, config_sync, notice } = self.observation.patience;
        let acting = self.node.acting_since();
        let ends = [(&run.since, answer), (&run.since, notice), (&run.published, config_sync)];
        let ends = ends.into_iter().chain(acting.iter().map(|since| (since, answer)));
        let ends = ends.filter_map(|(since, timeout)| since.0.checked_add(timeout).ok());
        self.decision.requeue_at = ends.filter(|at| *at > self.observation.now).min();
        self.decision.state = RequestState::InProgress(message.into());
        self.decision.run = Some(run);
        self.decision
    }

    /// Starts paused components again: the MIG manager does not after it got stuck, and not always after a failure.
    fn unpause(&mut self, failed: bool) {
        if failed || !self.node.busy() {
            self.decision.unpause = self.paused().cloned().collect();
        }
    }

    fn paused(&self) -> impl Iterator<Item = &String> {
        let paused = |(k, v): &(&String, &String)| k.starts_with(names::DEPLOY_LABELS) && *v == names::PAUSED;
        self.observation.labels.iter().filter(paused).map(|(k, _)| k)
    }

    fn enter(&self, run: &mut MigManagerRun, step: MigManagerStep) {
        (run.step, run.since, run.timeout) = (step, self.now(), self.timeout());
    }

    fn event(&mut self, reason: Reason, message: &str) {
        let message = format!("{}: {message}", self.name());
        self.decision.events.push(EventMessage { warning: true, reason, message });
    }

    fn is_over(&self, since: &Time, timeout: SignedDuration) -> bool {
        since.0.checked_add(timeout).is_ok_and(|at| at <= self.observation.now)
    }

    /// The timeout of a response, as the journal keeps it.
    fn timeout(&self) -> Option<DurationText> {
        DurationText::parse(format!("{}s", self.observation.patience.answer.as_secs())).ok()
    }

    fn now(&self) -> Time {
        stamp(self.observation.now)
    }

    fn name(&self) -> &str {
        self.observation.node.metadata.name.as_deref().unwrap_or("?")
    }

    fn reported_failure(&self, run: &MigManagerRun) -> String {
        format!(
            "NVIDIA's MIG manager of node {} reports {}=failed for {}={}: read the log of its pod on this node",
            self.name(),
            names::MIG_STATE_LABEL,
            names::MIG_CONFIG_LABEL,
            run.config
        )
    }

    fn silent(&self, run: &MigManagerRun) -> String {
        let state = self.node.state.map_or_else(|| "is missing".to_owned(), |s| format!("stays {s}"));
        format!(
            "label {} of node {} {state} although {} was set {ATTEMPTS} times, last to {}: read the log of the nvidia-mig-manager pod \
             on this node and restart it; components that it had paused run again",
            names::MIG_STATE_LABEL,
            self.name(),
            names::MIG_CONFIG_LABEL,
            run.config
        )
    }

    fn differing(&self, run: &MigManagerRun) -> String {
        let differing = self.node.gpus.iter().filter(|g| g.wanted != g.shown);
        let shown: Vec<String> = differing
            .map(|g| format!("GPU {} has {} and not {}", g.state.index, g.shown.words(), g.wanted.words()))
            .collect();
        format!(
            "NVIDIA's MIG manager of node {} reports success for {}, but NVML shows another layout: {}; read the log of its pod on this node",
            self.name(),
            run.config,
            shown.join(", ")
        )
    }
}
