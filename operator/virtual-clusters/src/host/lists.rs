//! Lists of a tenant's namespace. A team chooses number and size of what is in it: lists are read in small pages, one at a time in this program,
//! and of each object only what is used.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client,
    api::{ListParams, ObjectMeta, Request},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::Semaphore;

use super::pods::SlimPod;

/// Objects that are listed at once: each has at most a few MiB as JSON, and a page is in memory as text.
const PAGE: u32 = 10;
/// Most pods that are kept.
pub const MOST_PODS: usize = 5000;
/// One page at a time, for all tenants together.
static PAGES: Semaphore = Semaphore::const_new(1);

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

/// What is read of the metadata of an object.
#[derive(Deserialize)]
pub struct SlimObject {
    /// Its metadata.
    pub metadata: SlimObjectMeta,
}

/// See [`SlimObject`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SlimObjectMeta {
    /// Its name.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    managed_fields: Option<Vec<SlimEntry>>,
}

/// The fields themselves are as large as the object.
#[derive(Deserialize)]
struct SlimEntry {
    #[serde(default)]
    manager: Option<String>,
}

impl SlimObjectMeta {
    /// This manager has written a field of the object.
    pub fn is_managed_by(&self, manager: &str) -> bool {
        self.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(manager))
    }
}

/// This manager has written a field of the object.
pub fn is_managed_by(metadata: &ObjectMeta, manager: &str) -> bool {
    metadata.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(manager))
}

/// Gives the metadata of each object to `take`, until it returns false.
pub async fn metadata(
    client: &Client,
    (path, selector): (&str, &str),
    mut take: impl FnMut(SlimObjectMeta) -> bool,
) -> kube::Result<()> {
    let list = |params: &ListParams| Request::new(path).list_metadata(params);
    pages(client, selector, list, |object: SlimObject| take(object.metadata)).await.map(drop)
}

/// Pods with these labels, and whether these are all: only the first [`MOST_PODS`] are kept.
pub async fn pods(client: &Client, (path, selector): (&str, &str)) -> kube::Result<(Vec<Pod>, bool)> {
    let mut kept = Vec::new();
    let list = |params: &ListParams| Request::new(path).list(params);
    let all = pages(client, selector, list, |pod: SlimPod| {
        let more = kept.len() < MOST_PODS;
        if more {
            kept.push(Pod::from(pod));
        }
        more
    });
    let all = all.await?;
    Ok((kept, all))
}

/// Whether all objects were taken.
async fn pages<T: DeserializeOwned>(
    client: &Client,
    selector: &str,
    list: impl Fn(&ListParams) -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    mut take: impl FnMut(T) -> bool,
) -> kube::Result<bool> {
    let mut params = ListParams::default().labels(selector).limit(PAGE);
    loop {
        // it is never closed
        let _one = PAGES.acquire().await;
        let page: Page<T> = client.request(list(&params).map_err(kube::Error::BuildRequest)?).await?;
        if !page.items.into_iter().flatten().all(&mut take) {
            return Ok(false);
        }
        params.continue_token = page.metadata.next.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(true);
        }
    }
}
