//! The arguments of a container, each read for what it means.

use std::{collections::BTreeMap, net::SocketAddr, path::Path};

use anyhow::{Context, Result, bail};

use super::{Flag, Mounted, Place, Program};

/// The arguments as they are to be here; `ports` learns where the container's ports are.
pub(super) fn localize(
    args: &[String],
    program: &Program,
    env: &[(String, String)],
    volumes: &[Mounted],
    place: &Place,
    ports: &mut BTreeMap<String, SocketAddr>,
) -> Result<Vec<String>> {
    let mut local = Vec::with_capacity(args.len());
    for (index, arg) in args.iter().enumerate() {
        let arg = expand(arg, env);
        let Some(flag) = arg.strip_prefix("--") else {
            if index == 0 && program.subcommands.contains(&arg.as_str()) {
                local.push(arg);
                continue;
            }
            bail!(
                "argument {arg:?}: it is no flag of the form --name=value, and {} has no such subcommand",
                program.name
            );
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let known = program.flags.iter().find(|(known, _)| *known == name);
        let (_, kind) =
            known.with_context(|| format!("argument {arg:?}: the flag is not known here; say what its value is"))?;
        let (kind, value) = match (kind, value) {
            (Flag::Switch, None | Some("true" | "false")) => {
                local.push(arg);
                continue;
            }
            (Flag::Switch, Some(_)) => bail!("argument {arg:?}: it is neither true nor false"),
            (_, None) => bail!("argument {arg:?}: it has no value behind a `=`"),
            (kind, Some(value)) => (kind, value),
        };
        let value = match kind {
            Flag::Value | Flag::Switch => value.to_owned(),
            Flag::File => {
                let path = volumes.iter().find_map(|volume| volume.path(Path::new(value)));
                let path = path.with_context(|| format!("argument {arg:?}: no volume is mounted there"))?;
                path.to_str().context("the folder of volumes is no text")?.to_owned()
            }
            Flag::Listen => listen(value, place.listen, ports).with_context(|| format!("argument {arg:?}"))?,
            Flag::Metrics => listen(value, place.metrics, ports).with_context(|| format!("argument {arg:?}"))?,
            Flag::Advertise => place.advertise.clone().unwrap_or_else(|| value.to_owned()),
        };
        local.push(format!("--{name}={value}"));
    }
    Ok(local)
}

/// An address to listen on, in the place of one for all of a pod's addresses. The scheme stays.
fn listen(value: &str, address: SocketAddr, ports: &mut BTreeMap<String, SocketAddr>) -> Result<String> {
    let (scheme, authority) = match value.split_once("://") {
        Some((scheme, authority)) => (Some(scheme), authority),
        None => (None, value),
    };
    let asked: SocketAddr = authority.parse().context("it is not one address with a port")?;
    if !asked.ip().is_unspecified() {
        bail!("it does not listen on all of the pod's addresses");
    }
    if let Some(other) = ports.insert(asked.port().to_string(), address) {
        bail!("port {} is listened on twice (here at {other})", asked.port());
    }
    Ok(scheme.map_or_else(|| address.to_string(), |scheme| format!("{scheme}://{address}")))
}

/// Puts variables in the place of `$(NAME)`, as the kubelet does (third_party/forked/golang/expansion): one that is not
/// there stays as it is written, and `$$` stands for `$`.
pub(super) fn expand(text: &str, env: &[(String, String)]) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let reference = after.strip_prefix('(').and_then(|name| name.split_once(')'));
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = reference {
            match env.iter().rev().find(|(known, _)| known == name) {
                Some((_, value)) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            expanded.push('$');
            rest = after;
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_as_the_kubelet_does() {
        let env = [("NS".to_owned(), "system".to_owned()), ("EMPTY".to_owned(), String::new())];
        for (text, expanded) in [
            ("--namespace=$(NS)", "--namespace=system"),
            ("$(NS)$(NS)-$(EMPTY)-", "systemsystem--"),
            ("$(NONE)", "$(NONE)"),
            ("$$(NS)", "$(NS)"),
            ("$NS $", "$NS $"),
            ("$(NS", "$(NS"),
            ("plain", "plain"),
        ] {
            assert_eq!(expand(text, &env), expanded, "{text}");
        }
    }
}
