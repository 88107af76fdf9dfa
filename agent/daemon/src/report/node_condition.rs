//! Writes the condition `gputenancy.io/DevicesReady` of the agent's own Node, by server-side apply with a field manager of its own.

use std::time::Duration;

use gputenancy_cluster::{error::sentence, write::FieldManager};
use gputenancy_crds::{
    condition::ConditionUpdate,
    names::{AGENT_MANAGER, NODE_DEVICES_READY},
};
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{devices_ready::condition, gpu_node::Watched};
use crate::{device::DeviceView, partition::PartitionState};

/// Changes within this time are one write: other products may act upon each.
const DEBOUNCE: Duration = Duration::from_secs(2);
/// Delay after a write that failed.
const RETRY: Duration = Duration::from_secs(10);
/// Limit of a write.
const DEADLINE: Duration = Duration::from_secs(5);

/// What a condition says, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    status: String,
    reason: String,
    message: String,
}

impl From<&ConditionUpdate> for Said {
    fn from(update: &ConditionUpdate) -> Self {
        let status = match update.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        Self { status: status.to_owned(), reason: update.reason.to_string(), message: update.message.clone() }
    }
}

/// The condition as the API server has it.
#[derive(Clone, Debug)]
struct Written {
    said: Said,
    since: Timestamp,
}

fn written(node: &Node) -> Option<Written> {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let NodeCondition { status, reason, message, last_transition_time, .. } =
        conditions.find(|condition| condition.type_ == NODE_DEVICES_READY)?.clone();
    let said = Said { status, reason: reason.unwrap_or_default(), message: message.unwrap_or_default() };
    Some(Written { said, since: last_transition_time.map_or(Timestamp::UNIX_EPOCH, |at| at.0) })
}

/// The status to apply, and since when the condition has its own: a new reason keeps the time.
fn applied(said: &Said, before: Option<&Written>, now: Timestamp) -> (Value, Timestamp) {
    let since = before.filter(|before| before.said.status == said.status).map_or(now, |before| before.since);
    let Said { status, reason, message } = said;
    let condition = json!({
        "type": NODE_DEVICES_READY,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": Time(since),
    });
    (json!({"conditions": [condition]}), since)
}

/// Writes the condition of one Node.
pub struct DevicesReady {
    name: String,
    api: Api<Node>,
    written: Option<Written>,
    known: bool,
}

impl DevicesReady {
    /// For the Node with this name.
    pub fn new(client: Client, name: &str) -> Self {
        Self { name: name.to_owned(), api: Api::all(client), written: None, known: false }
    }

    /// Keeps the condition up to date, for as long as it is polled. Without a change nothing is written.
    pub async fn run(
        &mut self,
        mut watched: watch::Receiver<Watched>,
        mut state: watch::Receiver<PartitionState>,
        mut view: watch::Receiver<DeviceView>,
    ) {
        loop {
            let found = {
                let (watched, state) = (watched.borrow_and_update(), state.borrow_and_update());
                watched.desired.as_ref().map(|desired| condition(desired, &state, &view.borrow_and_update()))
            };
            let said = found.as_ref().map(|found| found.as_ref().map(Said::from));
            let done = match said {
                // before the first spec the condition of an earlier run stays
                None => true,
                Some(said) => self.write(said).await,
            };
            if !done {
                sleep(RETRY).await;
                continue;
            }
            tokio::select! {
                Ok(()) = watched.changed() => {}
                Ok(()) = state.changed() => {}
                Ok(()) = view.changed() => {}
                else => return,
            }
            sleep(DEBOUNCE).await;
        }
    }

    /// Removes the condition: an agent that leaves says nothing more about the devices.
    pub async fn remove(&mut self) {
        if self.known && !self.write(None).await {
            tracing::warn!(node = self.name, condition = NODE_DEVICES_READY, "condition of the node was not removed");
        }
    }

    /// Writes the condition if it differs; `None` removes it. False: not written, or unknown.
    async fn write(&mut self, said: Option<Said>) -> bool {
        match timeout(DEADLINE, self.try_write(said)).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(error = sentence(&error), node = self.name, "writing the condition of the node failed");
                false
            }
            Err(_) => {
                tracing::warn!(node = self.name, "writing the condition of the node timed out");
                false
            }
        }
    }

    async fn try_write(&mut self, said: Option<Said>) -> kube::Result<()> {
        if !self.known {
            self.written = written(&self.api.get(&self.name).await?);
            self.known = true;
        }
        if self.written.as_ref().map(|written| &written.said) == said.as_ref() {
            return Ok(());
        }
        let manager = FieldManager::new(format!("{AGENT_MANAGER}/devices-ready"));
        let Some(said) = said else {
            manager.apply_status(&self.api, &self.name, &json!({})).await?;
            self.written = None;
            return Ok(());
        };
        let (status, since) = applied(&said, self.written.as_ref(), Timestamp::now());
        // an answer that is lost leaves it unknown what the API server has
        self.known = false;
        manager.apply_status(&self.api, &self.name, &status).await?;
        self.known = true;
        tracing::info!(
            status = said.status,
            reason = said.reason,
            message = said.message,
            "wrote condition of the node"
        );
        self.written = Some(Written { said, since });
        Ok(())
    }
}
