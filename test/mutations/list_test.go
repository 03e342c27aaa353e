package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Trying them all takes a quarter of an hour: `make mutations`. What can rot is checked here.
func TestListIsCurrent(t *testing.T) {
	root := filepath.Join("..", "..")
	doc, err := os.ReadFile(filepath.Join(root, "docs", "mutations.md"))
	require.NoError(t, err)
	covered := map[string]bool{}
	for _, m := range list {
		_, err := m.broken(root)
		require.NoError(t, err)
		require.Contains(t, string(doc), m.row()+"\n")
		covered[m.guarantee] = true
	}
	require.Len(t, covered, 12, "each guarantee")
	require.Equal(t, len(list), strings.Count(string(doc), "\n| G"))
}
