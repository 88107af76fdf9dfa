//! The message of the API server about a pod that a quota of this product refuses: `exceeded quota: gputenancy, requested: pods=1, used: pods=9,
//! limited: pods=9`. It is in events of controllers, and inside virtual clusters in those of the syncer; anybody who writes events chooses the text.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::Amount;

/// Start of the text, with the name of the quotas.
const START: &str = "exceeded quota: gputenancy,";

/// The parts of a refusal, as the API server wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRefusal<'a> {
    /// All of it after the name of the quota.
    pub words: &'a str,
    /// Requests of the pod for the keys that are short.
    pub requested: QuotaAmounts<'a>,
    /// Use of these keys.
    pub used: QuotaAmounts<'a>,
    /// The limits of these; empty in a text that was cut.
    pub limited: QuotaAmounts<'a>,
}

/// Amounts by key of a quota, such as `requests.cpu=1,requests.nvidia.com/gpu=2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaAmounts<'a>(&'a str);

impl<'a> QuotaRefusal<'a> {
    /// Finds the refusal in a message; `None` if it is by no quota of this product.
    ///
    /// ```
    /// use gputenancy_crds::{quantity::Amount, quota_refusal::QuotaRefusal};
    ///
    /// let message = "pods \"a\" is forbidden: exceeded quota: gputenancy, requested: requests.nvidia.com/gpu=1, \
    ///                used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4";
    /// let refusal = QuotaRefusal::parse(message).expect("a refusal");
    /// assert_eq!(refusal.limited.of("requests.nvidia.com/gpu"), Some(Amount::units(4)));
    /// assert_eq!(QuotaRefusal::parse("exceeded quota: another, requested: pods=1, used: pods=1"), None);
    /// ```
    pub fn parse(message: &'a str) -> Option<Self> {
        let words = message.split_once(START)?.1.trim_start();
        let amounts = words.strip_prefix("requested:")?;
        // without it the last amount may be cut
        let (requested, rest) = amounts.split_once(", used:")?;
        let (used, limited) = rest.split_once(", limited:").unwrap_or((rest, ""));
        Some(Self {
            words,
            requested: QuotaAmounts(requested.trim()),
            used: QuotaAmounts(used.trim()),
            limited: QuotaAmounts(limited.trim()),
        })
    }
}

impl<'a> QuotaAmounts<'a> {
    /// The text.
    pub fn text(self) -> &'a str {
        self.0
    }

    /// Those of a text that was kept.
    pub fn of_text(text: &'a str) -> Self {
        Self(text)
    }

    /// Keys with their amounts; what is no quantity is left out.
    pub fn all(self) -> impl Iterator<Item = (&'a str, Amount)> {
        let pairs = self.0.split(',').filter_map(|pair| pair.split_once('='));
        pairs.filter_map(|(key, text)| Some((key.trim(), Amount::parse(&Quantity(text.trim().to_owned()))?)))
    }

    /// The amount under a key.
    pub fn of(self, key: &str) -> Option<Amount> {
        self.all().find(|(known, _)| *known == key).map(|(_, amount)| amount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "Error creating: pods \"x\" is forbidden: exceeded quota: gputenancy, requested: requests.cpu=1500m,requests.nvidia.com/gpu=2, used: requests.cpu=1,requests.nvidia.com/gpu=3, limited: requests.cpu=2,requests.nvidia.com/gpu=4";

    #[test]
    fn refusal_has_three_lists_of_amounts() {
        let refusal = QuotaRefusal::parse(MESSAGE).unwrap();
        let gpus = |amounts: QuotaAmounts<'_>| amounts.of("requests.nvidia.com/gpu");
        let found = [refusal.requested, refusal.used, refusal.limited].map(gpus);
        assert_eq!(found, [2, 3, 4].map(|n| Some(Amount::units(n))));
        assert_eq!(refusal.requested.of("requests.cpu"), Some(Amount::of_milli(1500)));
        assert!(refusal.words.starts_with("requested: requests.cpu=1500m") && refusal.words.ends_with("gpu=4"));
        assert_eq!(refusal.requested.text(), "requests.cpu=1500m,requests.nvidia.com/gpu=2");
    }

    #[test]
    fn other_texts_are_no_refusal_and_a_cut_one_has_what_is_there() {
        for text in [
            "",
            "exceeded quota: theirs, requested: pods=1",
            "exceeded quota: gputenancy",
            "exceeded quota: gputenancy, used: x",
            "exceeded quota: gputenancy, requested: pods=1",
        ] {
            assert_eq!(QuotaRefusal::parse(text), None, "{text}");
        }
        let cut = QuotaRefusal::parse("exceeded quota: gputenancy, requested: pods=1,x, used: po").unwrap();
        assert_eq!(cut.requested.all().collect::<Vec<_>>(), [("pods", Amount::units(1))]);
        assert_eq!((cut.used.all().count(), cut.limited.all().count()), (0, 0));
    }
}
