//! The lab's images: packed from the layout table, kept in the cache by content.

pub mod archive;
pub mod layout;
pub mod libraries;

use crate::command;
use crate::error::{Asking, During, Error, Result};
use crate::lab::Lab;
use crate::place::Folders;
use crate::prerequisites::which;
use crate::progress::Progress;
use crate::spec::Profile;
use crate::wait::{PATIENCE, wait_for_all};
use archive::{File, Files, digest};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, ResourceExt};
use kube::runtime::watcher;
use layout::{Layout, Source};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Version of the packing; part of the cache key.
const RECIPE: &str = "1";
/// Earlier versions of an image in the cache.
const KEPT: usize = 4;

/// Packs all images whose programs have been built and returns their tars, in the order of import.
pub async fn build_all(
    folders: &Folders,
    profile: Profile,
    all: bool,
    progress: &mut Progress,
) -> Result<Vec<PathBuf>> {
    let mut tars = Vec::new();
    let mut skipped = Vec::new();
    for layout in layout::all() {
        match build(folders, profile, &layout).await? {
            Built::Tar(tar, fresh) => {
                if fresh {
                    progress.step(&format!("image {} packed", layout.name));
                }
                tars.push(tar);
            }
            Built::Lacks(file) => skipped.push(format!("{} ({} is missing)", layout.name, file.display())),
        }
    }
    if skipped.is_empty() {
        progress.step(&format!("{} images are ready", tars.len()));
        return Ok(tars);
    }
    let list = skipped.join(", ");
    if all {
        return Err(Error::Missing(format!("images that cannot be packed: {list}; run `make build`")));
    }
    progress.step(&format!("{} images are ready; skipped: {list}", tars.len()));
    Ok(tars)
}

impl Lab {
    /// Packs the images, loads those that changed into all nodes that are on, and restarts the pods that run them.
    pub async fn refresh_images(&self, profile: Profile, all: bool, progress: &mut Progress) -> Result<()> {
        let tars = build_all(&self.inner.folders, profile, all, progress).await?;
        let loaded = self.load(&tars).await?;
        if loaded.is_empty() {
            return Ok(());
        }
        let folders: Vec<_> =
            loaded.iter().filter_map(|tar| tar.parent()?.file_name()?.to_str().map(str::to_owned)).collect();
        progress.step(&format!("loaded into all nodes: {}", folders.join(" ")));
        let changed: Vec<_> = layout::all().into_iter().map(|layout| layout.name).collect();
        let changed: Vec<_> = changed.into_iter().filter(|name| folders.contains(&short(name))).collect();
        self.restart_pods(&changed).await
    }

    /// Packs an image of [`layout::on_demand`] with development builds and loads it into all nodes that are on.
    pub async fn load_image(&self, name: &str) -> Result<()> {
        self.load_image_of(name, Profile::Debug).await
    }

    /// As [`Lab::load_image`], with the project's programs of this profile.
    pub async fn load_image_of(&self, name: &str, profile: Profile) -> Result<()> {
        let layout = on_demand(name)?;
        match build(&self.inner.folders, profile, &layout).await? {
            Built::Tar(tar, _) => {
                if !self.load(&[tar]).await?.is_empty() {
                    self.restart_pods(&[layout.name]).await?;
                }
                Ok(())
            }
            Built::Lacks(file) => Err(Error::Missing(format!("image {name} lacks {}", file.display()))),
        }
    }

    /// Loads tars into all nodes that are on; those that a node did not have.
    async fn load(&self, tars: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
        let mut loaded = BTreeSet::new();
        for (node, state) in self.status().await?.nodes {
            if state.pid.is_none() {
                continue;
            }
            for tar in tars {
                if self.node(&node)?.load_image(tar).await? {
                    loaded.insert(tar.clone());
                }
            }
        }
        Ok(loaded)
    }

    /// Deletes the pods of these images, and waits until they are gone: until then their owners count them as ready.
    async fn restart_pods(&self, images: &[&str]) -> Result<()> {
        let pods = Api::<Pod>::all(self.client()).list(&ListParams::default()).await;
        let mut deleted = BTreeSet::new();
        for pod in pods.asking(|| "listing pods".to_owned())? {
            let runs = pod.spec.iter().flat_map(|spec| &spec.containers);
            let stale = runs.filter_map(|container| container.image.as_deref()).any(|image| images.contains(&image));
            // a pod without a controller would not come back
            if stale && pod.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty()) {
                let api = Api::<Pod>::namespaced(self.client(), &pod.namespace().unwrap_or_default());
                let gone = api.delete(&pod.name_any(), &DeleteParams::default()).await;
                gone.asking(|| format!("deleting pod {}", pod.name_any()))?;
                deleted.extend(pod.uid());
            }
        }
        let is_old = |pod: &Pod| pod.metadata.uid.as_ref().is_some_and(|uid| deleted.contains(uid));
        let all = watcher::Config::default();
        wait_for_all(Api::<Pod>::all(self.client()), all, "pods of old images to end", PATIENCE, |pods| {
            !pods.iter().any(|pod| is_old(pod))
        })
        .await
        .map(drop)
    }
}

fn on_demand(name: &str) -> Result<Layout> {
    let layout = layout::on_demand().into_iter().find(|layout| layout.name == name);
    layout.ok_or_else(|| Error::Missing(format!("no image {name} is loaded on demand")))
}

/// The first program or chart of an image of [`layout::on_demand`] that has not been built; `None`: the image can be packed.
pub fn lacking(folders: &Folders, profile: Profile, name: &str) -> Result<Option<PathBuf>> {
    let programs = folders.target.join(profile.folder());
    let built = |source: &Source| match source {
        Source::Cargo(file) => Some(programs.join(file)),
        Source::Tool(tool) => Some(folders.toolset.join("bin").join(tool)),
        Source::Chart(file) => Some(folders.toolset.join("charts").join(file)),
        Source::Host(_) | Source::Pause | Source::Text(_) | Source::Link(_) | Source::Folder(_) => None,
    };
    let layout = on_demand(name)?;
    Ok(layout.files.iter().filter_map(|(_, source)| built(source)).find(|file| !file.exists()))
}

/// The outcome of [`build`].
pub enum Built {
    /// The tar, and whether it was packed just now.
    Tar(PathBuf, bool),
    /// A program of the project has not been built.
    Lacks(PathBuf),
}

/// The tar of one image, packed now or cached.
pub async fn build(folders: &Folders, profile: Profile, layout: &Layout) -> Result<Built> {
    let programs = folders.target.join(profile.folder());
    if let Some(lacks) = layout.programs().map(|(_, file)| programs.join(file)).find(|path| !path.is_file()) {
        return Ok(Built::Lacks(lacks));
    }
    let (files, sources) = read(folders, &programs, layout).await?;
    let key = key(layout, &files);
    let folder = folders.cache.join("images").join(short(layout.name));
    let tar = folder.join(format!("{key}.tar"));
    if tar.exists() {
        return Ok(Built::Tar(tar, false));
    }
    fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
    let files = stripped(files, &sources, &folder).await?;
    let new = tempfile::NamedTempFile::new_in(&folder).during(|| format!("writing {}", tar.display()))?;
    archive::write(new.as_file(), layout.name, layout.entrypoint, &files)
        .during(|| format!("writing {}", tar.display()))?;
    new.persist(&tar).map_err(|error| error.error).during(|| format!("writing {}", tar.display()))?;
    prune(&folder);
    Ok(Built::Tar(tar, true))
}

fn short(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).replace(':', "-")
}

/// All files of the image, unstripped, and which of them are programs of the project.
async fn read(folders: &Folders, programs: &Path, layout: &Layout) -> Result<(Files, Vec<PathBuf>)> {
    let mut files = Files::new();
    let mut own = Vec::new();
    let mut libraries = BTreeSet::new();
    for (path, source) in &layout.files {
        let from = match source {
            Source::Text(text) => {
                files.insert(path.into(), File::Regular(text.as_bytes().to_vec(), 0o644));
                continue;
            }
            Source::Link(target) => {
                files.insert(path.into(), File::Link((*target).to_owned()));
                continue;
            }
            Source::Folder(mode) => {
                files.insert(path.into(), File::Folder(*mode));
                continue;
            }
            Source::Cargo(file) => {
                own.push(PathBuf::from(path));
                programs.join(file)
            }
            Source::Tool(tool) => folders.tool(tool)?,
            Source::Chart(file) => folders.chart(file)?,
            Source::Host(program) => {
                which(program).ok_or_else(|| Error::Missing(format!("{program} is not installed on this machine")))?
            }
            Source::Pause => pause(folders).await?,
        };
        files.insert(path.into(), File::Regular(content(&from)?, 0o755));
        libraries.extend(libraries::needed(&from).await?);
    }
    if layout.driver_libraries {
        libraries.extend(libraries::of_drivers(&libraries));
    }
    for library in libraries {
        let bytes = content(&library)?;
        files.insert(library, File::Regular(bytes, 0o755));
    }
    if layout.applets {
        let listed = command::run("busybox", &["--list"]).await?;
        for applet in listed.lines().filter(|applet| *applet != "busybox") {
            files.entry(Path::new("/bin").join(applet)).or_insert(File::Link("busybox".to_owned()));
        }
    }
    Ok((files, own))
}

fn content(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).during(|| format!("reading {}", path.display()))
}

fn key(layout: &Layout, files: &Files) -> String {
    let mut text = format!("{RECIPE} {} {:?}\n", layout.name, layout.entrypoint);
    for (path, file) in files {
        let line = match file {
            File::Regular(bytes, mode) => format!("{mode:o} {}", digest(bytes)),
            File::Link(target) => format!("-> {target}"),
            File::Folder(mode) => format!("folder {mode:o}"),
        };
        text.push_str(&format!("{} {line}\n", path.display()));
    }
    digest(text.as_bytes()).chars().take(16).collect()
}

/// Strips debug information from the project's programs.
async fn stripped(mut files: Files, own: &[PathBuf], scratch: &Path) -> Result<Files> {
    for path in own {
        let Some(File::Regular(bytes, _)) = files.get_mut(path) else { continue };
        let file = tempfile::NamedTempFile::new_in(scratch).during(|| format!("stripping {}", path.display()))?;
        fs::write(file.path(), &bytes).during(|| format!("stripping {}", path.display()))?;
        command::run("strip", &["--strip-unneeded", &file.path().display().to_string()]).await?;
        *bytes = content(file.path())?;
    }
    Ok(files)
}

/// The compiled sandbox program.
async fn pause(folders: &Folders) -> Result<PathBuf> {
    let source = include_str!("pause.c");
    let folder = folders.cache.join("pause").join(digest(source.as_bytes()).chars().take(16).collect::<String>());
    let program = folder.join("pause");
    if program.exists() {
        return Ok(program);
    }
    fs::create_dir_all(&folder).during(|| format!("creating {}", folder.display()))?;
    let (code, new) = (folder.join("pause.c"), folder.join(format!("pause.{}", std::process::id())));
    fs::write(&code, source).during(|| format!("writing {}", code.display()))?;
    let mut command = Command::new("cc");
    command.args(["-Os", "-s", "-static", "-o"]).arg(&new).arg(&code);
    let line = command::words(&command);
    command::output(&mut command).await?.success(&line)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).during(|| format!("writing {}", new.display()))?;
    fs::rename(&new, &program).during(|| format!("writing {}", program.display()))?;
    Ok(program)
}

/// Removes all but the newest contents of an image.
fn prune(folder: &Path) {
    let mut tars: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "tar"))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    tars.sort();
    for (_, old) in tars.iter().rev().skip(KEPT) {
        let _ = fs::remove_file(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacking_names_the_first_file_that_is_not_built() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let folders = Folders {
            root: at(""),
            target: at("target"),
            toolset: at("toolset"),
            cache: at("cache"),
            state: at("state"),
        };
        let image = "lab.local/gputenancy-virtual-clusters:dev";
        let files = [
            "target/release/gputenancy-virtual-clusters",
            "toolset/bin/helm",
            "toolset/charts/vcluster-0.36.1.tgz",
            "toolset/charts/vcluster-0.36.0.tgz",
        ];
        for file in files.map(at) {
            assert_eq!(lacking(&folders, Profile::Release, image).unwrap(), Some(file.clone()));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
        }
        assert_eq!(lacking(&folders, Profile::Release, image).unwrap(), None);
        assert!(lacking(&folders, Profile::Release, "lab.local/pause:1").is_err(), "part of every lab");
    }
}
