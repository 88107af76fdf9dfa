//! What is written to pods: notices, their withdrawal, and evictions.

use gputenancy_crds::{
    names,
    reasons::{self, Reason},
};
use gputenancy_service::events::{self, EventType};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{Api, Resource as _};
use serde_json::json;

use super::{Controller, FleetError, budget, failed};
use crate::{apply::Evicted, plan::PodName};
use gputenancy_engine::{
    change::{Eviction, EvictionNotice, Refusal},
    fleet::{Fleet, notice_text},
};

impl Controller {
    /// Tells a pod that it will be evicted.
    pub(super) async fn notify(&self, fleet: &Fleet, notice: EvictionNotice) -> Result<(), FleetError> {
        let EvictionNotice { pod, uid, deadline, reason, elsewhere, .. } = notice;
        let text = notice_text(deadline, &reason, &elsewhere);
        // the uid is a precondition: another pod of this name has nothing to fear
        let fields = json!({"metadata": {"uid": uid, "annotations": {names::EVICTION_NOTICE: text}}});
        let api = Api::<Pod>::namespaced(self.writer.client(), &pod.namespace);
        match self.writer.merge(&api, &pod.name, &fields).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => return Ok(()),
            Err(error) => return Err(failed(format!("telling pod {pod} of its eviction"))(error)),
        }
        self.tell_pod(fleet, &pod, EventType::Warning, reasons::EVICTION_NOTICE, text).await;
        Ok(())
    }

    /// Takes a notice back: the change that it spoke of is over, and the pod has stayed.
    pub(super) async fn spare(&self, fleet: &Fleet, pod: &PodName, uid: &str) -> Result<(), FleetError> {
        let fields = json!({"metadata": {"uid": uid, "annotations": {names::EVICTION_NOTICE: null}}});
        let api = Api::<Pod>::namespaced(self.writer.client(), &pod.namespace);
        match self.writer.merge(&api, &pod.name, &fields).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => return Ok(()),
            Err(error) => return Err(failed(format!("taking the notice back from pod {pod}"))(error)),
        }
        let note = "the change that would have evicted this pod has been taken back or given up".to_owned();
        self.tell_pod(fleet, pod, EventType::Normal, reasons::EVICTION_CANCELLED, note).await;
        Ok(())
    }

    /// The API server's words about a refusal, and which budget and pods stand behind them; looked up once for each wording.
    async fn explain_refusal(&mut self, pod: &PodName, uid: &str, words: String) -> String {
        if let Some((_, text)) = self.explained.get(uid).filter(|(known, _)| *known == words) {
            return text.clone();
        }
        let text = match budget::behind(&self.writer.client(), pod).await {
            Ok(budgets) if budgets.is_empty() => words.clone(),
            Ok(budgets) => format!("{}: {words}", budgets.join("; ")),
            Err(error) => {
                tracing::warn!(%error, %pod, "the disruption budgets of a pod cannot be read");
                words.clone()
            }
        };
        self.explained.insert(uid.to_owned(), (words, text.clone()));
        text
    }

    /// Evicts a pod; a refusal is remembered, so that the next pass says who stands in the way and when to try again.
    pub(super) async fn evict(&mut self, fleet: &Fleet, eviction: Eviction) -> Result<(), FleetError> {
        let Eviction { pod, uid, reason } = eviction;
        let answer = self.writer.evict(&pod.namespace, &pod.name, &uid).await;
        match answer.map_err(failed(format!("evicting pod {pod}")))? {
            Evicted::Accepted => {
                self.refusals.remove(&uid);
                self.tell_pod(fleet, &pod, EventType::Normal, reasons::EVICTED, reason).await;
            }
            Evicted::Refused(words) => {
                let message = self.explain_refusal(&pod, &uid, words).await;
                let first = !self.refusals.contains_key(&uid);
                tracing::info!(%pod, message, "the eviction was refused");
                if first {
                    self.tell_pod(fleet, &pod, EventType::Warning, reasons::EVICTION_REFUSED, message.clone()).await;
                }
                self.refusals.insert(uid, Refusal { at: Timestamp::now(), message });
                // the next pass sees the refusal and says when to try again
                self.look_again = true;
            }
        }
        Ok(())
    }

    async fn tell_pod(&self, fleet: &Fleet, pod: &PodName, event_type: EventType, reason: Reason, note: String) {
        if let Some(found) = fleet.pods.get(pod) {
            let regarding = found.object_ref(&());
            let action = "Change".into();
            self.publisher.publish(events::Notice { regarding, event_type, reason, action, note }).await;
        }
    }
}
