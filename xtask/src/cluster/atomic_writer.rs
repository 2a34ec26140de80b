//! Files that change all at once, laid out as the kubelet lays out the volumes of Secrets and ConfigMaps
//! (pkg/volume/util/atomic_writer.go): the files of one state lie in a folder `..<time>.<number>`, the link `..data`
//! names the present one and is exchanged by a rename, and what a program opens is a link through `..data`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// One file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    /// What it holds.
    pub data: Vec<u8>,
    /// Its permission bits.
    pub mode: u32,
}

/// The files of a volume by their path inside it.
pub type Payload = BTreeMap<String, File>;

/// Whether a volume was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It has a new state.
    New,
    /// It was as it should be; not even the link was exchanged.
    Unchanged,
}

/// Brings the volume in `folder`, which must be there, to the state `payload`.
///
/// One writer at a time: two would take each other's folders away.
///
/// # Errors
/// When a path leads out of the volume or begins with `..`, or a file cannot be written. A reader then still sees one
/// whole state.
pub fn write(folder: &Path, payload: &Payload) -> Result<Written> {
    payload.keys().try_for_each(|path| check(path))?;
    let data = folder.join(DATA);
    let old = match std::fs::read_link(&data) {
        Ok(name) => Some(folder.join(name)),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| format!("reading the link {}", data.display())),
    };
    let removed = match &old {
        Some(old) => &entries(old)? - &wanted(payload),
        None => BTreeSet::new(),
    };
    if let Some(old) = &old
        && removed.is_empty()
        && holds(old, payload)?
    {
        // A writer that was killed between its steps may have left a link unmade.
        link(folder, payload)?;
        return Ok(Written::Unchanged);
    }
    let new = state_folder(folder)?;
    fill(&new, payload)?;
    let next = folder.join(NEW_DATA);
    // Left by a writer that was killed before its rename.
    remove(&next)?;
    symlink(new.file_name().context("the new state has no name")?, &next)
        .with_context(|| format!("linking {}", next.display()))?;
    std::fs::rename(&next, &data).with_context(|| format!("renaming {} to {DATA}", next.display()))?;
    link(folder, payload)?;
    for path in removed.iter().filter(|path| path.components().count() == 1) {
        remove(&folder.join(path))?;
    }
    if let Some(old) = old {
        std::fs::remove_dir_all(&old).with_context(|| format!("removing {}", old.display()))?;
    }
    Ok(Written::New)
}

/// No path may leave the volume or take a name that the writer needs.
fn check(path: &str) -> Result<()> {
    let relative = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if path.is_empty() || !relative || path.starts_with("..") {
        bail!("{path:?} is no path for a file of a volume: it is to be relative, without `..`");
    }
    Ok(())
}

/// What lies in a state's folder, files and folders, relative to it.
fn entries(state: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut left = vec![state.to_path_buf()];
    while let Some(folder) = left.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("reading {}", folder.display())),
        };
        for entry in entries {
            let path = entry?.path();
            found.insert(path.strip_prefix(state)?.to_path_buf());
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    Ok(found)
}

/// The paths of a payload, with the folders on the way.
fn wanted(payload: &Payload) -> BTreeSet<PathBuf> {
    let parents = |path| Path::new(path).ancestors().filter(|part| !part.as_os_str().is_empty());
    payload.keys().flat_map(parents).map(Path::to_path_buf).collect()
}

/// Whether a state has every file with its content. (The mode is not looked at, as the kubelet does not.)
fn holds(state: &Path, payload: &Payload) -> Result<bool> {
    for (path, file) in payload {
        match std::fs::read(state.join(path)) {
            Ok(data) if data == file.data => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error).with_context(|| format!("reading {path}")),
        }
    }
    Ok(true)
}

/// An empty folder for a state, named by the time with a number that makes it the only one.
fn state_folder(volume: &Path) -> Result<PathBuf> {
    let now = jiff::Timestamp::now();
    let time = now.strftime("..%Y_%m_%d_%H_%M_%S");
    for number in u32::try_from(now.subsec_nanosecond()).unwrap_or_default().. {
        let path = volume.join(format!("{time}.{number}"));
        match std::fs::DirBuilder::new().mode(0o755).create(&path) {
            Ok(()) => {
                // Whatever the umask says.
                permit(&path, 0o755)?;
                return Ok(path);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("creating {}", path.display())),
        }
    }
    bail!("no name is left for a folder in {}", volume.display())
}

fn fill(state: &Path, payload: &Payload) -> Result<()> {
    for (path, file) in payload {
        let path = state.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        crate::pki::write(&path, &file.data, file.mode)?;
        permit(&path, file.mode)?;
    }
    Ok(())
}

/// Makes the links that programs open, one for each first part of a path.
fn link(volume: &Path, payload: &Payload) -> Result<()> {
    let first = |path: &String| Path::new(path).components().next().map(|part| PathBuf::from(part.as_os_str()));
    for name in payload.keys().filter_map(first).collect::<BTreeSet<_>>() {
        let path = volume.join(&name);
        match symlink(Path::new(DATA).join(&name), &path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("linking {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn permit(path: &Path, mode: u32) -> Result<()> {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).with_context(|| format!("setting the mode of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Volume(PathBuf);

    impl Volume {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("xtask-volume-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        }

        fn read(&self, path: &str) -> String {
            std::fs::read_to_string(self.0.join(path)).unwrap()
        }

        fn state(&self) -> PathBuf {
            std::fs::read_link(self.0.join(DATA)).unwrap()
        }
    }

    impl Drop for Volume {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, data)| ((*path).to_owned(), File { data: data.as_bytes().to_vec(), mode: 0o440 }))
            .collect()
    }

    #[test]
    fn files_are_links_through_data() {
        let volume = Volume::new("links");
        assert_eq!(write(&volume.0, &payload(&[("tls.crt", "one"), ("sub/ca.crt", "ca")])).unwrap(), Written::New);
        assert_eq!(volume.read("tls.crt"), "one");
        assert_eq!(volume.read("sub/ca.crt"), "ca");
        assert_eq!(std::fs::read_link(volume.0.join("tls.crt")).unwrap(), Path::new("..data/tls.crt"));
        assert_eq!(std::fs::read_link(volume.0.join("sub")).unwrap(), Path::new("..data/sub"));
        let state = volume.state();
        let name = state.to_str().unwrap();
        assert!(name.starts_with("..2") && name.split('.').count() == 4 && !name.contains('/'), "{name}");
        let mode = |path: &str| std::fs::metadata(volume.0.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode("tls.crt"), 0o440);
        assert_eq!(mode(name), 0o755);
    }

    #[test]
    fn a_new_state_takes_the_place_of_the_old() {
        let volume = Volume::new("swap");
        write(&volume.0, &payload(&[("tls.crt", "one"), ("gone", "x")])).unwrap();
        let first = volume.state();
        assert_eq!(write(&volume.0, &payload(&[("tls.crt", "two")])).unwrap(), Written::New);
        let second = volume.state();
        assert_ne!(first, second);
        assert_eq!(volume.read("tls.crt"), "two");
        assert_eq!(volume.names(), [second.to_str().unwrap(), DATA, "tls.crt"], "nothing of the old state is left");
    }

    #[test]
    fn the_same_state_is_not_written_again() {
        let volume = Volume::new("same");
        let state = payload(&[("tls.crt", "one")]);
        write(&volume.0, &state).unwrap();
        let first = volume.state();
        std::fs::remove_file(volume.0.join("tls.crt")).unwrap();
        assert_eq!(write(&volume.0, &state).unwrap(), Written::Unchanged);
        assert_eq!(volume.state(), first);
        assert_eq!(volume.read("tls.crt"), "one", "a link that was missing is made");
    }

    #[test]
    fn what_a_killed_writer_left_is_no_hindrance() {
        let volume = Volume::new("killed");
        write(&volume.0, &payload(&[("a", "1")])).unwrap();
        symlink("..nowhere", volume.0.join(NEW_DATA)).unwrap();
        write(&volume.0, &payload(&[("a", "2")])).unwrap();
        assert_eq!(volume.read("a"), "2");
    }

    #[test]
    fn paths_stay_inside() {
        let volume = Volume::new("paths");
        for path in ["", "/etc/passwd", "../x", "a/../../x", "..data", "..x"] {
            assert!(write(&volume.0, &payload(&[(path, "x")])).is_err(), "{path:?}");
        }
        assert!(volume.names().is_empty());
    }
}
