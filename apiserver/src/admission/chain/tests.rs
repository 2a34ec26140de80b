use async_trait::async_trait;

use super::*;
use crate::admission::Operation;

struct Named(&'static str);

#[async_trait]
impl Plugin for Named {
    fn name(&self) -> &'static str {
        self.0
    }

    fn handles(&self, _: Operation) -> bool {
        true
    }
}

fn select(enable: &[&str], disable: &[&str]) -> Result<Vec<&'static str>, PluginSelectionError> {
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let plugins = Plugins::default().on(Named("First")).off(Named("Second")).on(Named("Third"));
    Ok(plugins.select(&owned(enable), &owned(disable))?.names().collect())
}

#[test]
fn flags_choose_plugins_but_not_their_order() {
    assert_eq!(select(&[], &[]).unwrap(), ["First", "Third"]);
    assert_eq!(select(&["Third", "Second"], &["First"]).unwrap(), ["Second", "Third"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let error = select(&[], &["Frist"]).unwrap_err().to_string();
    assert!(
        error.contains("--disable-admission-plugins")
            && error.contains("\"Frist\"")
            && error.contains("First, Second, Third"),
        "{error}"
    );
    assert!(matches!(select(&["Second"], &["Second"]), Err(PluginSelectionError::Both { .. })));
}
