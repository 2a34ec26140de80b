use super::*;

#[test]
fn definitions_are_made() {
    assert_eq!(crds().len(), 3);
}
